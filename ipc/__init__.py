"""What the processes of a run say to each other, imported as `procsv.ipc`: messages, channels, shared memory."""
