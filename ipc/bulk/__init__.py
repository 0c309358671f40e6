"""Transfer snapshots between the machines of a run, in pieces and on connections of their own.

Tensors never travel in messages.
"""
