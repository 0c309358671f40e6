"""`python -m procsv.services.checkpoint`: run the checkpoint service.  The watchdog starts it."""

from __future__ import annotations

from procsv.base.identity import CHECKPOINT
from procsv.base.system.output import leave
from procsv.ipc.messaging.start import take_start
from procsv.services.checkpoint.process import CheckpointService
from procsv.services.runtime import serve

if __name__ == "__main__":
    leave(serve(take_start(CHECKPOINT), CheckpointService))  # does not wait for a stuck job
