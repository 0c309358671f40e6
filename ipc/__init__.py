"""Communication between the processes of a run, imported as `procsv.ipc`: messages, channels, shared memory."""
