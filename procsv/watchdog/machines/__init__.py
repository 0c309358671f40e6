"""Run tasks on several machines: how launches find each other, and the coordinator's and the
members' sides.
"""
