"""Snapshots of any source of state: when they are taken, copied, published and restored."""
