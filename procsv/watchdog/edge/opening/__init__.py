"""Open a run: take its directory, deal with what an earlier run has left, and hold the lease."""
