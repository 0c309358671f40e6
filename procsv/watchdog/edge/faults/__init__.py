"""Fault injection by the watchdog."""
