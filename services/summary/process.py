"""Write a run's event files and graph.pbtxt in a process of its own.

So no trainer waits for a disk.

procsv.services.runtime runs it. core.py decides, stream_file.py writes and graph_text.py prints;
this module connects them to the messages.  It never imports TensorFlow (memory limit: 60 MB).  It
acknowledges a record only when the record is in its file.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
from collections.abc import Iterator

from procsv.base.errors import PeerError, ProcsvBug
from procsv.base.identity import TaskId
from procsv.base.system.failpoints import declare, failpoint
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.messaging.messages import Ack, Hello
from procsv.ipc.messaging.summary_messages import CloseWriter, GraphText, OpenWriter, Records, RunMetrics
from procsv.ipc.messaging.watchdog_messages import Finish, FlushDone
from procsv.ipc.shm.heartbeat import LOOP_AT_DISK
from procsv.services.runtime import Tools
from procsv.services.summary.core import Action, Append, Close, Discard, Open, SummaryCore, SummaryReply, Sweep
from procsv.services.summary.graph_text import GraphPrinter
from procsv.services.summary.metrics_file import MetricsFile
from procsv.services.summary.stream_file import StreamStore

TICK_S = 1.0
TICK_S_ENDING = 0.05  # while waiting for the trainer, the graph or an acknowledgement
ALONE_S = 2.0  # how long an orphan that knows no trainer waits for one to connect again
SETTLED_WAIT_S = 2.0  # how long to wait for FlushDone to be acknowledged before ending anyway

declare("summary.after_flush_before_ack")


class ProgramWatch:
    """Tells whether the tasks that have sent Hello still run.

    It holds their pidfds, so it never mistakes a later process with the same pid for a task.
    """

    def __init__(self) -> None:
        self._pidfds: dict[TaskId, int] = {}

    @property
    def is_known(self) -> bool:
        return bool(self._pidfds)

    def watch_program(self, task: TaskId, pid: int) -> None:
        self._close(self._pidfds.get(task, -1))
        self._pidfds[task] = -1  # stays -1 if the process has already ended
        with contextlib.suppress(ProcessLookupError):
            self._pidfds[task] = os.pidfd_open(pid)

    def has_ended(self) -> bool:
        """Whether all known tasks have ended; False if none has sent Hello."""
        return self.is_known and all(
            pidfd < 0 or bool(select.select([pidfd], [], [], 0)[0]) for pidfd in self._pidfds.values()
        )

    def close(self) -> None:
        for pidfd in self._pidfds.values():
            self._close(pidfd)
        self._pidfds.clear()

    @staticmethod
    def _close(pidfd: int) -> None:
        if pidfd >= 0:
            os.close(pidfd)


class SummaryService:
    """The runtime.Service that writes event files."""

    def __init__(
        self, tools: Tools, stream_store: StreamStore | None = None, programs: ProgramWatch | None = None
    ) -> None:
        """`stream_store` and `programs`: the simulation passes its own disk and processes."""
        self._tools = tools
        paths = tools.start.paths
        self._core = SummaryCore((paths.shm_dir, paths.run_dir))
        self._store = stream_store or StreamStore(paths, tools.start.run)
        self._metrics = MetricsFile(paths.home)
        self._graphs = GraphPrinter(tools.wake)
        self._programs = programs or ProgramWatch()
        self._finish: Received | None = None  # the request that FlushDone will answer once all is on disk
        self._is_settled = False
        self._orphan_s: float | None = None  # when we found that the watchdog is dead
        self._end_s = 0.0  # the deadline of the present step of the shutdown
        self._is_finished = False

    # -- runtime.Service -----------------------------------------------------------------------------------
    def handle_message(self, received: Received) -> None:
        if received.task.runs_program and self._core.is_stale(received.task, received.incarnation):
            return
        try:
            with self._at_disk():
                self._dispatch(received)
        except PeerError as error:
            self._tools.server.drop(str(error)[:60])

    def tick(self, now_s: float) -> float:
        self._tools.heartbeat.work = self._core.records_written
        with self._at_disk():
            for writer, through in self._store.repair():
                self._core.recovered(writer, through)
        for request in self._graphs.take_printed():
            self._tools.server.acknowledge(request)
        if self._finish is not None:
            with self._at_disk():
                self._go_on_finishing(self._finish, now_s)
        elif self._orphan_s is not None:
            with self._at_disk():
                self._go_on_as_orphan(self._orphan_s, now_s)
        else:
            return TICK_S
        return TICK_S_ENDING

    @contextlib.contextmanager
    def _at_disk(self) -> Iterator[None]:
        """Marks the heartbeat while the loop may wait for a disk, which can take any time."""
        heartbeat, clock = self._tools.heartbeat, self._tools.clock
        heartbeat.moved = LOOP_AT_DISK
        heartbeat.beat(clock.monotonic())
        try:
            yield
        finally:
            heartbeat.moved = 0
            heartbeat.beat(clock.monotonic())

    def orphaned(self) -> None:
        self._orphan_s = self._tools.clock.monotonic()
        self._end_s = math.inf if self._tools.start.observes else self._orphan_s + self._tools.start.settings.grace_s

    def is_finished(self) -> bool:
        return self._is_finished

    def close(self) -> None:
        self._graphs.close()
        self._programs.close()
        self._store.close()
        self._metrics.close()

    # -- messages ------------------------------------------------------------------------------------------
    def _dispatch(self, received: Received) -> None:
        match received.body:
            case Hello(pid=pid):
                if received.task.runs_program:
                    self._programs.watch_program(received.task, pid)
                    self._perform(self._core.attempt_began(received.task, received.incarnation))
                    self._tools.server.forget(received.task, received.incarnation - 1)
                self._tools.server.acknowledge(received)
            case OpenWriter() | Records() | CloseWriter() as body:
                if (refusal := self._store.refuse_while_unrepaired(body.writer)) is not None:
                    self._tools.server.send(received.who, refusal, re=received.seq)
                    return
                self._perform(self._core.attempt_began(received.task, received.incarnation), 0)
                self._perform(self._decide(received.who, body), received.seq)
            case GraphText() as body:
                self._core.check_parcel(body.parcel)
                self._graphs.print_later(received, body)
            case RunMetrics() as body:
                self._metrics.write_record(body, self._tools.clock.wall())
            case Finish():
                self._finish, self._is_settled = received, False
                self._end_s = self._tools.clock.monotonic() + self._tools.start.settings.grace_s
            case Ack():
                pass
            case body:
                raise ProcsvBug(f"{type(body).__name__} has no handler")

    def _decide(self, who: bytes, body: OpenWriter | Records | CloseWriter) -> list[Action]:
        match body:
            case OpenWriter():
                return self._core.open(who, body)
            case Records():
                return self._core.records(who, body)
            case CloseWriter():
                return self._core.close_stream(who, body)

    def _perform(self, actions: list[Action], re: int = 0) -> None:
        for action in actions:
            match action:
                case SummaryReply(who=who, body=body):
                    # Killed here: the sender sends the records again and learns that they are written.
                    failpoint("summary.after_flush_before_ack")
                    self._tools.server.send(who, body, re=re)
                case Append():
                    error = self._store.append_records(action.writer, action.records, self._tools.clock.wall())
                    self._perform(self._core.append_failed(action, error) if error else self._core.appended(action), re)
                case Open(writer=writer, logdir=logdir, suffix=suffix):
                    self._store.open_stream(writer, logdir, suffix)
                case Close(writer=writer):
                    self._store.end_stream(writer)
                case Discard(parcels=parcels):
                    for parcel in parcels:
                        parcel.unlink(missing_ok=True)
                case Sweep(task=task, incarnation=incarnation):
                    self._store.purge(task, incarnation)

    # -- the end -------------------------------------------------------------------------------------------
    def _go_on_finishing(self, finish: Received, now_s: float) -> None:
        if not self._is_settled:
            if self._graphs.pending and now_s < self._end_s:
                return
            error = self._core.error() or self._graphs.error
            self._perform(self._core.close_all())
            self._tools.server.send_reliable(finish.who, FlushDone(-1, error), re=finish.seq)
            self._is_settled, self._end_s = True, now_s + SETTLED_WAIT_S
        self._is_finished = not self._tools.server.unacknowledged(finish.task) or now_s >= self._end_s

    def _go_on_as_orphan(self, since_s: float, now_s: float) -> None:
        """Writes what the trainer still sends, and ends once the trainer has ended.

        Under `procsv launch`, the trainer ends soon: it has seen the same end-of-file on its own
        lifeline.  A program whose watchdog was an observer trains on, and this service with it.
        """
        end_s = self._end_s if self._programs.is_known else min(self._end_s, since_s + ALONE_S)
        if self._programs.has_ended() or now_s >= end_s:
            self._perform(self._core.close_all())
            self._is_finished = True
