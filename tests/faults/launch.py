"""Run `procsv launch` with settings that have no option: launch.py LOGDIR SETTINGS TARGET [ARGS…]

SETTINGS is a JSON object with fields of LaunchSettings. All processes are real.
"""

from __future__ import annotations

import sys

import msgspec

from procsv.cli.launch import make_start
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.watchdog.main import run

if __name__ == "__main__":
    _, logdir, text, target, *args = sys.argv
    sys.exit(run(make_start(logdir, target, tuple(args), msgspec.json.decode(text, type=LaunchSettings))))
