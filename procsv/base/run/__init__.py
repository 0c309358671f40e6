"""Name, read and write the files of a run: its paths, run.json, logs, terms, lease and locks."""
