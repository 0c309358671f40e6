"""Rules of restarts: causes of ends, whether starting again pays, how long to wait, and what one end means for other tasks."""
