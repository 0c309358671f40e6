"""Capture a parameter server's variables for the chief, in the server's own process."""
