"""Capture and restore the state of an eager program, and supervise its training."""
