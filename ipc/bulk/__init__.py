"""Transfer snapshots between the machines of a run, in pieces and on a channel of their own.

Tensors never travel in messages.
"""
