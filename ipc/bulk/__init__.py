"""Snapshots between the machines of a run: in pieces, on a channel of their own, as tensors never travel in messages."""
