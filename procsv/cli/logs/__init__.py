"""Output of the processes of a run, for `procsv logs`."""
