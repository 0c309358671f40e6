"""`procsv launch` in parts: its options, what it checks, and how it becomes the watchdog."""
