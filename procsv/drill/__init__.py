"""Rehearse crashes and preemptions before they happen."""
