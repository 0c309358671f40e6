"""Manage the processes of one machine, and a standby from which tasks start faster."""
