"""The service processes of a run, imported as `procsv.services`, and the skeleton they share."""
