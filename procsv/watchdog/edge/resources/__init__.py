"""The machine's resources: memory, its limits, and the GPU."""
