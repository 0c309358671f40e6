"""Fault plans: what is to happen to which process, and when."""
