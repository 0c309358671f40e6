"""The trainer process: its start, the program in it, the standby, its log."""
