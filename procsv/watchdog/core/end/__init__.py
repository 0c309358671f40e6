"""The end of a run: why it ends, the order in which its tasks are asked to, and what its services do last."""
