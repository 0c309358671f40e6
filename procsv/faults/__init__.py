"""Fault plans: faults, their targets and their times."""
