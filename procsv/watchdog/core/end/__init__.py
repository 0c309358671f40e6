"""End a run: why it ends, in which order its tasks end, and what its services do last."""
