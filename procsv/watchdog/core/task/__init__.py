"""Supervise one task of a run: its lifecycle, its attempts and their progress, and what is kept of
them.
"""
