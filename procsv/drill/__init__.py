"""Drills: rehearse crashes and preemptions before they come."""
