"""A checkpoint service that saves nothing, for tests of the watchdog without TensorFlow.

STAND_IN_CHECKPOINT in its environment sets its behaviour:
    die        exits with code 9 before it is ready
    unsaved    cannot save what the trainer left
    wedged     the first one's loop gets stuck once the trainer has spoken
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from procsv.base.identity import CHECKPOINT, TRAINER, WATCHDOG
from procsv.ipc.messaging.checkpoint_messages import Restore, RestoreFrom
from procsv.ipc.messaging.messages import Hello
from procsv.ipc.messaging.start import take_start
from procsv.ipc.messaging.watchdog_messages import Finish, FlushDone, TrainerExited
from procsv.services.runtime import Tools, serve

if TYPE_CHECKING:
    from procsv.ipc.messaging.endpoint import Received


class StandIn:
    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.finishing = False
        self.error = "disk is full" if os.environ.get("STAND_IN_CHECKPOINT") == "unsaved" else ""

    def handle_message(self, received: Received) -> None:
        server = self.tools.server
        match received.body:
            case Restore():
                server.send_reliable(received.who, RestoreFrom("fresh", "", 0, 0, (), ""), re=received.seq)
            case Hello() if received.task == TRAINER and is_wedged(self.tools):
                gets_nowhere()
            case TrainerExited():
                server.send_reliable(received.who, FlushDone(-1, self.error), re=received.seq)
            case Finish():
                server.send_reliable(received.who, FlushDone(-1, self.error), re=received.seq)
                self.finishing = True
            case _:
                server.acknowledge(received)

    def tick(self, now_s: float) -> float:
        return 1.0

    def orphaned(self) -> None:
        self.finishing = True

    def is_finished(self) -> bool:
        return self.finishing and not self.tools.server.unacknowledged(WATCHDOG)

    def close(self) -> None:
        pass


def is_wedged(tools: Tools) -> bool:
    return os.environ.get("STAND_IN_CHECKPOINT") == "wedged" and tools.start.incarnation == 1


def gets_nowhere() -> None:
    while True:
        pass


if __name__ == "__main__":
    start = take_start(CHECKPOINT)
    if os.environ.get("STAND_IN_CHECKPOINT") == "die":
        sys.exit(9)
    sys.exit(serve(start, StandIn))
