"""Connect a training process to its run: what it was told at its start, the link and the event streams.

Held by the Runtime, which opens and closes it.  Any thread may send.  A program may end at any time, so `tell_watchdog` and
`add_tick` drop what comes when the connection is closed; the other methods raise an error then.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from procsv.base import exit_codes
from procsv.base.clock import Clock
from procsv.base.errors import UserError
from procsv.base.identity import CHECKPOINT, WATCHDOG, TaskId, attempt_name
from procsv.base.journal.entries import AnyEntry
from procsv.base.run.paths import RunPaths
from procsv.ipc.messaging.checkpoint_messages import UserSave
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.watchdog_messages import AdoptLogdir, LogdirAdopted, Note
from procsv.training.runtime.event_streams import EventStreams
from procsv.training.runtime.link import Link

ADOPT_S_MAX = 60.0  # for the watchdog's answer


class RunConnection:
    """The connection of one process, which may be opened for one run after another."""

    def __init__(self, paths: RunPaths, peers: tuple[TaskId, ...], start: Start | None, clock: Clock) -> None:
        self.paths = paths
        self.streams = EventStreams(clock)
        self.streams.on_need = self._wake_link
        self._peers, self._start, self._clock = peers, start, clock
        self._link: Link | None = None

    @property
    def start(self) -> Start:
        assert self._start is not None, "the run has not started"
        return self._start

    @property
    def link(self) -> Link:
        assert self._link is not None, "the run has not started"
        return self._link

    @property
    def is_open(self) -> bool:
        return self._link is not None

    @property
    def told_snapshot_s(self) -> float | Literal["auto"]:
        """The command line's interval of snapshots: seconds, 0 for off, or "auto"."""
        return self._start.settings.snapshot_s if self._start is not None else "auto"

    # -- opening and closing ---------------------------------------------------------------------------------
    def begin_attempt(self, start: Start) -> None:
        """Makes this process trainer `start.incarnation` of the run that `start` names."""
        self._start, self.paths = start, start.paths

    def make_link(self) -> Link:
        """A link for `open_link`, to which handlers can be given first.  The event streams belong to the run from here on."""
        start = self.start
        link = Link(start, self._clock, self.streams, self._peers)
        self.streams.attach_to_run(
            start.paths.shm_dir, attempt_name(start.task, start.incarnation), start.paths.run_dir
        )
        return link

    def open_link(self, link: Link) -> None:
        self._link = link

    def start_link(self) -> None:
        """Starts the link's thread; call it when all handlers that must miss nothing are in place."""
        if not self.link.is_talking:
            self.link.start_thread()

    def take_link(self) -> Link:
        """The link, which nobody else finds any more."""
        link, self._link = self.link, None
        return link

    # -- messages --------------------------------------------------------------------------------------------
    def _wake_link(self) -> None:
        link = self._link
        if link is not None:
            link.wake()

    def tell_checkpoint(self, body: Message) -> None:
        self.link.send_reliable(CHECKPOINT, body)

    def tell_user_save(self, path: str) -> None:
        """Tells the service that the program has saved `path` by the supervised Saver, if there is a service."""
        if self._link is not None:
            self.tell_checkpoint(UserSave(path))

    def tell_watchdog(self, body: Message) -> None:
        """Sends `body` to the watchdog, unless the connection is closed."""
        link = self._link
        if link is not None:
            link.send_reliable(WATCHDOG, body)

    def note_entry(self, entry: AnyEntry) -> None:
        """Writes a line to the journal."""
        self.tell_watchdog(Note(entry))

    def add_tick(self, tick: Callable[[float], None]) -> None:
        """Calls `tick` with each turn of the link's thread, unless the connection is closed: a program may end at any time."""
        link = self._link
        if link is not None:
            link.on_tick.append(tick)

    def adopt_logdir(self, logdir: Path) -> None:
        """Makes `logdir`, which the program has named, that of the run.  UserError if it cannot be."""
        told = self.link.ask(WATCHDOG, AdoptLogdir(str(logdir)), ADOPT_S_MAX)
        assert isinstance(told.body, LogdirAdopted), "the answer to AdoptLogdir"
        if told.body.error:
            raise UserError(told.body.error, exit_code=exit_codes.LOGDIR_UNUSABLE)
        self._start = self.start.with_logdir(str(logdir))
