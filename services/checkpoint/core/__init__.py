"""The checkpoint service's decisions: pure, from messages and a time to actions."""
