"""Run `procsv launch` with a checkpoint service that needs no TensorFlow: launch.py LOGDIR SETTINGS
TARGET [ARGS…]

SETTINGS is a JSON object with fields of LaunchSettings. STAND_IN_LEASE_S is the age at which an
unrenewed lease has ended, STAND_IN_RENEW_S the interval of renewals, and STAND_IN_MARGIN_S the time
that a dead run's processes get beyond the grace period.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from procsv.base.identity import CHECKPOINT
from procsv.base.run import lease
from procsv.cli.launch import make_start
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.watchdog.edge.opening import leftovers, run_lock
from procsv.watchdog.main import run

if TYPE_CHECKING:
    from procsv.ipc.messaging.start import Start

STAND_IN = Path(__file__).with_name("checkpoint.py")


def argv(start: Start) -> list[str]:
    if start.task == CHECKPOINT:
        return [sys.executable, str(STAND_IN), start.logdir]
    return start.argv()


if __name__ == "__main__":
    _, logdir, text, target, *args = sys.argv
    run_lock.LEASE_S = float(os.environ.get("STAND_IN_LEASE_S", run_lock.LEASE_S))
    lease.RENEW_S = float(os.environ.get("STAND_IN_RENEW_S", lease.RENEW_S))
    leftovers.LEFTOVER_MARGIN_S = float(os.environ.get("STAND_IN_MARGIN_S", leftovers.LEFTOVER_MARGIN_S))
    settings = msgspec.json.decode(text, type=LaunchSettings)
    sys.exit(run(make_start(logdir, target, tuple(args), settings), argv))
