"""The trainer process: its bootstrap, its program, the standby, its log."""
