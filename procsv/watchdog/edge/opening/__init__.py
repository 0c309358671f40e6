"""Opening of a run: its directory taken, what an earlier run has left alive or dead, and the lease while it is ours."""
