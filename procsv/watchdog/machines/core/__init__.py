"""Decide for a run on several machines: members, orders, the copy of the chief's memory, surviving
tasks.
"""
