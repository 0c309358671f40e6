"""Disk, locks, processes, output, the clock: all that touches the system."""
