"""The trainer process: its bootstrap, the program in it, the standby, its log."""
