"""Decide what the watchdog does: pure code that turns events and the time into actions."""
