"""Programs that run as they stand: `procsv launch procsv.examples.digits`."""
