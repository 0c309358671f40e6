"""Access the machine's resources: memory, its limits, ports and files."""
