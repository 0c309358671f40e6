"""Make the checkpoint service's decisions: from events and a time to actions, in pure code."""
