"""`procsv top [DIR]`: a run on one screen, redrawn every second."""
