"""Simulate runs under random faults, in memory."""
