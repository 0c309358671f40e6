"""Shared memory between the processes of a run: snapshot slots and heartbeats."""
