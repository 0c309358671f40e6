"""Decide for a run on several machines: members, orders, memory copies, surviving tasks."""
