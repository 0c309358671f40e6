"""Snapshots of any state source: when to take them; how to copy, publish and restore them."""
