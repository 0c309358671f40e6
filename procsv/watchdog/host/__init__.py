"""Manage the processes of one machine: start, end and inspect them, and keep a standby for faster
starts.
"""
