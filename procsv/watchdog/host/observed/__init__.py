"""Observe a program that has started its watchdog itself, with services that wait for a run."""
