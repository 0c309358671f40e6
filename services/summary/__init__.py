"""The summary service: owns the event files in the logdir."""
