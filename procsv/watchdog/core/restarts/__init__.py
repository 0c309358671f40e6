"""Decide about restarts.

Why did an attempt end? Is another attempt useful, and when does it start? What does the end mean
for other tasks?
"""
