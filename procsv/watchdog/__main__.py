"""`python -m procsv.watchdog`: run a watchdog that another process starts.

`procsv launch` starts it this way for a detached run, for example.
"""

from __future__ import annotations

import sys

from procsv.base.identity import WATCHDOG
from procsv.ipc.messaging.start import take_start
from procsv.watchdog.main import run

if __name__ == "__main__":
    sys.exit(run(take_start(WATCHDOG)))
