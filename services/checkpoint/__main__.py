"""`python -m procsv.services.checkpoint`: the checkpoint service's process, started by whoever runs the run."""

from __future__ import annotations

import sys

from procsv.ipc.start import take_start
from procsv.services.checkpoint.process import CheckpointService
from procsv.services.runtime import serve

if __name__ == "__main__":
    sys.exit(serve(take_start("checkpoint"), CheckpointService))
