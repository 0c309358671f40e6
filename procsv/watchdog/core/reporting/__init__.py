"""Report on a run to people and to a service manager."""
