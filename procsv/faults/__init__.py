"""Describe fault plans: faults, their targets and their times."""
