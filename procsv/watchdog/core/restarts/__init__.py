"""Decide about restarts: the cause of an end, whether a restart is useful, the delay, and the
effect on other tasks.
"""
