"""Show the output of a run's processes, for `procsv logs`."""
