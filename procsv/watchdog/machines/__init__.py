"""Runs on several machines: how their launches find each other, the coordinator's side and the members'."""
