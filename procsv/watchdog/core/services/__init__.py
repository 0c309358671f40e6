"""The services as the watchdog sees them: keeping each alive, and what the checkpoint service says of saving."""
