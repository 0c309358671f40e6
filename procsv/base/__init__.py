"""Foundations that every other part may use: time, units, errors, disk, locks, processes."""
