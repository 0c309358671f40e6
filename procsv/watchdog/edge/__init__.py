"""Connect the watchdog's core to the world: processes, sockets, signals and files."""
