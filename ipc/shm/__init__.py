"""Share memory between the processes of a run: snapshot slots, heartbeats and file parcels."""
