"""Relate the tasks of a run: who they are, which train in step, and which wait for which."""
