"""Decide what the watchdog does: pure state machines that turn events and a time into actions."""
