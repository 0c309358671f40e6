"""The watchdogs of a run on several machines: the coordinator's side, and the members'."""
