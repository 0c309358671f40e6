"""Decide about restarts: causes of ends, usefulness, delays, and effects on other tasks."""
