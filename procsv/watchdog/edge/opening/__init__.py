"""Open a run: take its logdir, clear what an earlier run has left, and hold lock and lease."""
