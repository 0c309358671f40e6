"""The files of a run: their paths, run.json, logs, and the lock on the `checkpoint` file."""
