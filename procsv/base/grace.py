"""Divide a grace period: the trainer ends first, then the services; the rest is a margin."""

TRAINER_SHARE = 17 / 25
SERVICES_SHARE = 5 / 25
# Parts of the trainer's share:
BOUNDARY_SHARE = 0.5  # after this, a program that still trains is ended at the next step boundary
OWN_SHARE = 0.6  # until then, a program that handles SIGTERM itself is left alone
FORCED_SHARE = 0.9  # after this, a program that still runs is ended wherever it is
HEAD_START_S = 2.0  # how long the chief waits for the workers to end before its last save
