"""The checkpoint service: writes, verifies and deletes the checkpoints in the logdir."""
