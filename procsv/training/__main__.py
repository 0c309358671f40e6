"""`python -m procsv.training`: the trainer process of `procsv launch`.  Never started by hand."""

from procsv.training.process.bootstrap import main

main()
