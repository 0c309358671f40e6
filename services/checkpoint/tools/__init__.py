"""Programs that read checkpoints in a separate process."""
