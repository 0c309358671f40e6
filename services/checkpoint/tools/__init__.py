"""Programs that read checkpoints in a process of their own."""
