"""Parts of `procsv launch`: its options, its checks, and the start of the watchdog."""
