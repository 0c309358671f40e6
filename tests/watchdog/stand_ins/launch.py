"""`procsv launch` with a checkpoint service that needs no TensorFlow:  launch.py LOGDIR OPTIONS TARGET [ARGS…]

OPTIONS is a JSON object of the watchdog's options, with grace_s and standby among them, and socket_s: how often it looks at its
socket.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from procsv.cli.launch import make_start
from procsv.watchdog.edge import event_loop
from procsv.watchdog.main import run

if TYPE_CHECKING:
    from procsv.ipc.messaging.start import Start

STAND_IN = Path(__file__).with_name("checkpoint.py")


def argv(start: Start) -> list[str]:
    if start.role == "checkpoint":
        return [sys.executable, str(STAND_IN), start.logdir]
    return start.argv()


if __name__ == "__main__":
    _, logdir, text, target, *args = sys.argv
    options = json.loads(text)
    grace_s = float(options.pop("grace_s", 25.0))
    event_loop.SOCKET_S = float(options.pop("socket_s", event_loop.SOCKET_S))
    standby = options.pop("standby", "off")
    start = make_start(logdir, target, tuple(args), -1.0, grace_s, options)
    sys.exit(run(msgspec.structs.replace(start, standby=standby), argv))
