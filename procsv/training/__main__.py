"""Run a trainer. `procsv launch` starts `python -m procsv.training`; never start it by hand."""

from procsv.training.process.bootstrap import main

main()
