"""The watchdog's edge: processes, sockets, signals and files around the core."""
