"""Measurements of procsv beside TensorFlow's own supervisors.  Run by `scripts/bench`; part of no package."""
