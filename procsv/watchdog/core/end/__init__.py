"""End a run: why it ends, the order in which its tasks are asked to end, and what its services do
last.
"""
