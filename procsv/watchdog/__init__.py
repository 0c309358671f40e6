"""The watchdog: starts the processes of a run, watches them, and restarts the ones that die."""
