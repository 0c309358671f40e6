"""`python -m procsv.services.checkpoint`: the checkpoint service's process, started by whoever runs the run."""

from __future__ import annotations

import os
import sys
import threading

from procsv.base.identity import CHECKPOINT
from procsv.ipc.messaging.start import take_start
from procsv.services.checkpoint.process import CheckpointService
from procsv.services.runtime import serve

if __name__ == "__main__":
    code = serve(take_start(CHECKPOINT), CheckpointService)
    if threading.active_count() > 1:  # a job is stuck, or TensorFlow was used: not waited for
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
