"""Let the processes of a run communicate: messages, channels and shared memory.

The package is imported as `procsv.ipc`.
"""
