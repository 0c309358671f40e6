"""Shares of a grace period: the trainer ends first, then the services; the rest is a margin."""

TRAINER_SHARE = 17 / 25
SERVICES_SHARE = 5 / 25
BOUNDARY_SHARE = 0.5  # of the trainer's share; a program that still trains then is ended at a step
OWN_SHARE = 0.6  # of the trainer's share; a program that handles SIGTERM itself is left alone for so long
FORCED_SHARE = 0.9  # of the trainer's share; a program that still runs then is ended where it is
HEAD_START_S = 2.0  # of the workers: one that takes longer is not what the chief's last save waits for
