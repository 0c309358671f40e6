"""What a training process shares with its run: link, event streams, stop requests, watchdog."""
