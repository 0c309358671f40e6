"""Parts that a training process shares with its run: the link, event streams, grace, extend, preempted."""
