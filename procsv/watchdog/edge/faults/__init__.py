"""Inject the faults that the watchdog carries out."""
