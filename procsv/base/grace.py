"""Divide a grace period: the trainer ends first, then the services; the rest is a margin."""

TRAINER_SHARE = 17 / 25
SERVICES_SHARE = 5 / 25
BOUNDARY_SHARE = 0.5  # of the trainer's share; then a program that still trains is ended at a step
OWN_SHARE = 0.6  # of the trainer's share; until then a program that handles SIGTERM itself is left alone
FORCED_SHARE = 0.9  # of the trainer's share; then a program that still runs is ended wherever it is
HEAD_START_S = 2.0  # how long the chief's last save waits for the workers to end
