"""`procsv top [DIR]`: show a run on one screen, redrawn every second."""
