"""The files of a run: their paths, the journal, run.json, logs, and the lock on the `checkpoint` file."""
