"""Run tasks on several machines, as the coordinator or as a member."""
