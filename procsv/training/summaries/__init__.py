"""Summaries of a graph program, on their way to the summary service."""
