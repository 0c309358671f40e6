"""Make the checkpoint service's decisions: pure functions of messages and a time, which return actions."""
