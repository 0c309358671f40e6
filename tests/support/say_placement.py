"""Print a launch's placement and Slurm's placement as JSON: python -m tests.support.say_placement WORKERS PS."""

from __future__ import annotations

import json
import os
import sys

import msgspec

from procsv.base.cluster import list_tasks
from procsv.base.errors import UserError
from procsv.base.placement import find_placement


def main() -> int:
    workers, ps = map(int, sys.argv[1:])
    try:
        placement = find_placement("auto", os.environ, list_tasks(workers, ps, 0))
    except UserError as error:
        print(f"procsv: {error}", file=sys.stderr)
        return error.exit_code
    told = {name: os.environ.get(name) for name in ("SLURM_PROCID", "SLURMD_NODENAME")}
    said = msgspec.to_builtins(placement) | {"task": str(placement.task)} if placement is not None else None
    # One line below 1 KiB: srun mixes longer ones with the output of other tasks.
    print(json.dumps({"placement": said, "told": told}), flush=True)
    return 0


sys.exit(main())
