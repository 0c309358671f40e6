"""Connect a training process to its run: its start record, the link and the event streams.

The Runtime holds, opens and closes the connection.  Any thread may send.  Because a program may end
at any time, `tell_watchdog`, `note_entry`, `tell_user_save` and `add_tick` do nothing once the
connection is closed.  The other methods that need the link then raise an error.
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
from procsv.base.run.run_file import read_run
from procsv.ipc.messaging.checkpoint_messages import UserSave
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.watchdog_messages import AdoptLogdir, LogdirAdopted, Note
from procsv.training.runtime.event_streams import EventStreams
from procsv.training.runtime.link import Link

ADOPT_S_MAX = 60.0  # for the watchdog's answer


class RunConnection:
    """The connection of one process, which can be opened for several runs in turn."""

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
        """The command line's snapshot interval: seconds, 0 for off, or "auto"."""
        return self._start.settings.snapshot_s if self._start is not None else "auto"

    # -- open and close ----------------------------------------------------------------------------
    def begin_attempt(self, start: Start) -> None:
        """Makes this process trainer `start.incarnation` of the run in `start`."""
        self._start, self.paths = start, start.paths

    def make_link(self) -> Link:
        """Makes a link for `open_link`, so that handlers can be added first.

        The event streams belong to the run from here on.
        """
        start = self.start
        link = Link(start, self._clock, self.streams, self._peers)
        self.streams.attach_to_run(
            start.paths.shm_dir, attempt_name(start.task, start.incarnation), start.paths.run_dir
        )
        return link

    def open_link(self, link: Link) -> None:
        self._link = link

    def start_link(self) -> None:
        """Starts the link's thread; first add all handlers that must not miss a message."""
        self.link.start_thread()

    def take_link(self) -> Link:
        """Removes the link from the connection and returns it."""
        link, self._link = self.link, None
        return link

    def leave_to_parent(self) -> None:
        """In a fork: forgets the connection."""
        self._link = None
        self.streams.leave_to_parent()

    # -- messages ----------------------------------------------------------------------------------
    def _wake_link(self) -> None:
        link = self._link
        if link is not None:
            link.wake()

    def tell_checkpoint(self, body: Message) -> None:
        self.link.send_reliable(CHECKPOINT, body)

    def tell_user_save(self, path: str) -> None:
        """Tells the service, if there is one, that the supervised Saver has saved `path`."""
        link = self._link  # read once: another thread may close the connection
        if link is not None:
            link.send_reliable(CHECKPOINT, UserSave(path))

    def tell_watchdog(self, body: Message) -> None:
        """Sends `body` to the watchdog, unless the connection is closed."""
        link = self._link
        if link is not None:
            link.send_reliable(WATCHDOG, body)

    def note_entry(self, entry: AnyEntry) -> None:
        """Writes an entry to the journal."""
        self.tell_watchdog(Note(entry))

    def add_tick(self, tick: Callable[[float], None]) -> None:
        """Calls `tick` at each turn of the link's thread, unless the connection is closed."""
        link = self._link
        if link is not None:
            link.on_tick.append(tick)

    def adopt_logdir(self, logdir: Path) -> None:
        """Makes the program's `logdir` the run's logdir; UserError if that is impossible."""
        told = self.link.ask(WATCHDOG, AdoptLogdir(str(logdir)), ADOPT_S_MAX)
        assert isinstance(told.body, LogdirAdopted), "the answer to AdoptLogdir"
        if told.body.error:
            raise UserError(told.body.error, exit_code=exit_codes.LOGDIR_UNUSABLE)
        self._start = self.start.with_logdir(str(logdir))

    def learn_logdir(self) -> str:
        """Returns the run's logdir.

        The chief's program may have named it when this process had already started.
        """
        start = self.start
        run = read_run(start.paths.records / start.paths.run_json.name) if not start.root else None
        if run is not None and run.run == start.run and run.root:
            self._start = start.with_logdir(run.logdir)
        return self.start.logdir
