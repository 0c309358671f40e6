"""Provide what every other part may use: time, units, errors, disk, locks, processes."""
