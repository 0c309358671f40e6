"""Stand-in for the summary service on the machine of a member: takes the event records of its task, and passes them on to the run's.

Used by member_loop.py.  The task connects to it as to the service.  What is kept, and what is sent when, is decided in
core/relayed_streams.py.  It opens no event file: these are written on the coordinator's machine, where all others are.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from procsv.base.clock import Clock
from procsv.base.identity import TaskId
from procsv.base.run.paths import RunPaths
from procsv.ipc.messaging import message, summary_messages
from procsv.ipc.messaging.codec import encode_body
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.messaging.event_backlog import PARCEL_GLOB
from procsv.ipc.messaging.member_messages import TaskRecords
from procsv.ipc.messaging.zmq_transport import Server, Waiter
from procsv.watchdog.core.members.relayed_streams import Message, RelayedStreams

HEARD_MAX = 1000  # messages in one turn of the loop


class SummaryStandIn:
    def __init__(self, server: Server, task: TaskId, paths: RunPaths, clock: Clock) -> None:
        """`server`: in the service's place, to be closed here."""
        self.server = server
        self._task, self._clock = task, clock
        self._parcel_dirs = (paths.shm_dir, paths.run_dir)
        self._streams = RelayedStreams()

    def listen(self, waiter: Waiter) -> None:
        waiter.add(self.server)

    def hear(self) -> None:
        """Takes what the task has sent."""
        for _ in range(HEARD_MAX):
            if (received := self.server.receive()) is None:
                return
            is_current = self._streams.began(received.incarnation)
            match received.body:
                case (
                    summary_messages.OpenWriter() | summary_messages.Records() | summary_messages.CloseWriter() as body
                ):
                    if is_current:
                        self._take(received, body)
                case _:
                    self.server.acknowledge(received)

    def _take(self, received: Received, body: Message) -> None:
        before = self._streams.taken(received.incarnation, body.writer)
        parcels = self._parcels(body) if isinstance(body, summary_messages.Records) else {}
        if isinstance(body, summary_messages.Records) and parcels:
            try:
                body = _unpacked(body, parcels, before)
            except OSError:
                body = msgspec.structs.replace(
                    body, records=(), parcels={}
                )  # it is put into another one, and sent again
        answer = self._streams.heard(received.incarnation, body)
        for number, parcel in parcels.items():
            if number <= answer.through:
                parcel.unlink(missing_ok=True)  # killed before: it goes with the directory
        self.server.send(received.who, answer, re=received.seq)

    def _parcels(self, body: summary_messages.Records) -> dict[int, Path]:
        """Those that lie where the parcels of this machine do: any other file is neither read nor removed."""
        named = {number: Path(path) for number, path in body.parcels.items()}
        return {n: path for n, path in named.items() if path.parent in self._parcel_dirs and path.match(PARCEL_GLOB)}

    def due(self) -> list[TaskRecords]:
        """What is to be sent to the coordinator now."""
        found = self._streams.due(self._clock.monotonic())
        return [TaskRecords(self._task, incarnation, encode_body(body)) for incarnation, body in found]

    def next_due_s(self) -> float | None:
        return self._streams.next_due_s(self._clock.monotonic())

    def tell(self, answer: message.Message) -> None:
        """What the summary service has answered."""
        if isinstance(answer, summary_messages.Written):
            self._streams.on_written(answer, self._clock.monotonic())

    def connected(self) -> None:
        """There is a new connection to the coordinator."""
        self._streams.connected()

    def follow_run(self) -> None:
        """The task goes on with another coordinator."""
        self._streams.follow_run()

    def is_written(self, incarnation: int) -> bool:
        """Whether nothing that has come of that attempt is still to be written."""
        return self._streams.is_written(incarnation)

    def what_is_lost(self) -> str:
        """In words, what is not in an event file now that the launch ends; "" if all is."""
        streams = self._streams
        lost = [f"{streams.unwritten} had not reached the coordinator's machine"] if streams.unwritten else []
        lost += [f"{streams.left_out} were too large"] if streams.left_out else []
        return f"event records of {self._task} were not written: {' and '.join(lost)}" if lost else ""

    def forget(self, incarnation: int) -> None:
        """That attempt is dead."""
        self.server.forget(self._task, incarnation)

    def close(self) -> None:
        self.server.close()


def _unpacked(body: summary_messages.Records, parcels: dict[int, Path], taken: int) -> summary_messages.Records:
    """With what is in the parcels, where that was not taken before.  OSError if one is gone."""
    records = [
        parcels[number].read_bytes() if number > taken and number in parcels else record
        for number, record in enumerate(body.records, body.first)
    ]
    return msgspec.structs.replace(body, records=tuple(records), parcels={})
