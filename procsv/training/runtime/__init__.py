"""Parts that a training process shares with its run: the link, event streams, stop requests, watchdog."""
