"""Name, read and write the files of a run: paths, run.json, logs, and the lock on the `checkpoint` file."""
