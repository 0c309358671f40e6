"""The watchdog: start the processes of a run, watch them, and restart the ones that die."""
