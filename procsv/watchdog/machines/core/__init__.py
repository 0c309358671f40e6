"""Decisions of a run on several machines: its members, their orders, the copy of the chief's memory, and what outlives a coordinator."""
