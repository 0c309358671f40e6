"""Checkpoints on a local disk: written, found, verified, rotated."""
