"""How a grace is divided, from the trainer's side."""

TRAINER_SHARE = 17 / 25  # of the grace: the rest is the services' and a margin
BOUNDARY_SHARE = 0.5  # of the trainer's share: a program that trains on after a stop is ended at a step then
FORCED_SHARE = 0.9  # of the trainer's share: one that has not come to its end by then is ended where it is
