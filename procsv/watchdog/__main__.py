"""`python -m procsv.watchdog`: the watchdog of a run that is started by another process: a detached one, or a program of its own."""

from __future__ import annotations

import sys

from procsv.base.identity import WATCHDOG
from procsv.ipc.messaging.start import take_start
from procsv.watchdog.main import run

if __name__ == "__main__":
    sys.exit(run(take_start(WATCHDOG)))
