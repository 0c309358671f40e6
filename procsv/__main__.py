"""`python -m procsv`: the same as `procsv`."""

from procsv.cli.main import main

main()
