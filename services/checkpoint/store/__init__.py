"""Checkpoints, written, found, verified and rotated; where they lie is behind one protocol."""
