"""The checkpoint service: owns the checkpoints in the logdir."""
