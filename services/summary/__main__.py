"""`python -m procsv.services.summary`: the summary service, started by whoever runs the run."""

from __future__ import annotations

import sys

from procsv.base.identity import SUMMARY
from procsv.ipc.messaging.start import take_start
from procsv.services.runtime import serve
from procsv.services.summary.process import SummaryService

if __name__ == "__main__":
    sys.exit(serve(take_start(SUMMARY), SummaryService))
