"""The program that has started its watchdog itself, and services that wait for a run."""
