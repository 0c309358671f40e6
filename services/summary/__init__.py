"""The summary service: writes the event files in the logdir."""
