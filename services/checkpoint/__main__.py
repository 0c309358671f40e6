"""`python -m procsv.services.checkpoint`: the checkpoint service's process, started by whoever runs the run."""

from __future__ import annotations

from procsv.base.identity import CHECKPOINT
from procsv.base.system.output import leave
from procsv.ipc.messaging.start import take_start
from procsv.services.checkpoint.process import CheckpointService
from procsv.services.runtime import serve

if __name__ == "__main__":
    leave(serve(take_start(CHECKPOINT), CheckpointService))  # a job that is stuck is not waited for
