"""Runs on several machines: the members, their orders, the mirror of the chief's memory, and what outlives a coordinator."""
