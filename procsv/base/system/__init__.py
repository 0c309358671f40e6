"""Access the system: disk, locks, processes, output and the clock."""
