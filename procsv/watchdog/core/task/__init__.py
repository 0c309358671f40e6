"""Supervise one task of a run: its lifecycle, its attempts, and the training that they keep."""
