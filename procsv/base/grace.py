"""Shares of a grace period: the trainer ends first, then the services; the rest is a margin."""

TRAINER_SHARE = 17 / 25
SERVICES_SHARE = 5 / 25
BOUNDARY_SHARE = 0.5  # of the trainer's share: a program that trains on after a stop is ended at a step then
FORCED_SHARE = 0.9  # of the trainer's share: one that has not come to its end by then is ended where it is
