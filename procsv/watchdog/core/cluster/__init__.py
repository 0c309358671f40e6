"""The tasks of a run together: who they are, who trains in step with whom, and who waits for whom."""
