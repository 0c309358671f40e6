"""`python -m procsv.watchdog`: run a watchdog that another process starts, such as for a detached run."""

from __future__ import annotations

import sys

from procsv.base.identity import WATCHDOG
from procsv.ipc.messaging.start import take_start
from procsv.watchdog.main import run

if __name__ == "__main__":
    sys.exit(run(take_start(WATCHDOG)))
