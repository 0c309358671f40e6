"""`procsv launch` with the watchdog's inner waits shortened:  launch.py LOGDIR OPTIONS TARGET [ARGS…]

OPTIONS is a JSON object: the watchdog's options by their inner names, and grace_s.  Everything that runs is the real thing.
"""

from __future__ import annotations

import json
import sys

from procsv.cli.launch import make_start
from procsv.watchdog.main import run

if __name__ == "__main__":
    _, logdir, text, target, *args = sys.argv
    options = json.loads(text)
    grace_s = float(options.pop("grace_s", 25.0))
    snapshot_s = float(options.pop("snapshot_s", -1.0))
    sys.exit(run(make_start(logdir, target, tuple(args), snapshot_s, grace_s, options)))
