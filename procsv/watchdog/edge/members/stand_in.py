"""Stand-in for the checkpoint service on the machine of a member: passes on what its task asks, and the answer.

Used by member_loop.py.  The task connects to it as to the service.  What it may map is on the chief's machine, so it is always told of
a checkpoint, in the logdir that all see; what else a task says to the service is of no consequence here, and acknowledged.
"""

from __future__ import annotations

from procsv.base.clock import Clock
from procsv.base.identity import CHECKPOINT, TaskId
from procsv.ipc.messaging import messages
from procsv.ipc.messaging.endpoint import Address, Received
from procsv.ipc.messaging.member_messages import AskState
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Context, Server

HEARD_MAX = 1000  # messages in one turn of the loop
ELSEWHERE = "the checkpoint service is on the chief's machine, and writes no files of other tasks"


class StandIn:
    def __init__(self, context: Context, start: Start, clock: Clock) -> None:
        self.server = Server(context, start.paths.service_socket(CHECKPOINT), Address(start.run, CHECKPOINT, 1), clock)
        self._asked: Received | None = None  # the question that waits for its answer; a task has one at a time

    def hear(self) -> list[AskState]:
        """What is to be asked of the coordinator."""
        questions: list[AskState] = []
        for _ in range(HEARD_MAX):
            if (received := self.server.receive()) is None:
                break
            match received.body:
                case messages.Restore():
                    self._asked = received
                    questions.append(AskState(received.task, received.incarnation))
                case messages.PlaceFile(parcel):
                    answer = messages.FilePlaced(parcel, ELSEWHERE)
                    self.server.send_reliable(received.who, answer, re=received.seq)
                case _:
                    self.server.acknowledge(received)
        return questions

    @property
    def open_question(self) -> AskState | None:
        """The one that waits for its answer."""
        asked = self._asked
        return AskState(asked.task, asked.incarnation) if asked is not None else None

    def tell(self, incarnation: int, answer: messages.Message) -> None:
        """The answer to the question of that attempt; of an earlier one, nobody waits for it."""
        asked = self._asked
        if asked is not None and asked.incarnation == incarnation:
            self._asked = None
            self.server.send_reliable(asked.who, answer, re=asked.seq)

    def forget(self, task: TaskId, incarnation: int) -> None:
        """That attempt is dead."""
        self.server.forget(task, incarnation)
        if self._asked is not None and self._asked.incarnation <= incarnation:
            self._asked = None

    def close(self) -> None:
        self.server.close()
