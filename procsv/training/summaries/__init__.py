"""Send the summaries of a graph program to the summary service."""
