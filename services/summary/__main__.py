"""`python -m procsv.services.summary`: run the summary service.  The watchdog starts it."""

from __future__ import annotations

from procsv.base.identity import SUMMARY
from procsv.base.system.output import leave
from procsv.ipc.messaging.start import take_start
from procsv.services.runtime import serve
from procsv.services.summary.process import SummaryService

if __name__ == "__main__":
    leave(serve(take_start(SUMMARY), SummaryService))
