"""Supervise one task of a run: its lifecycle, its attempts, and what is kept of them."""
