"""Files of a fit, from captured variables: put together on a thread of its own, and handed to the checkpoint service.

Made by a Fit.  What a snapshot says was saved must be saved: a snapshot waits, off the training thread, until the files that were
captured before it are whole in shared memory, from where the service writes them whatever becomes of this process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from procsv.base.errors import PeerError
from procsv.base.identity import CHECKPOINT
from procsv.ipc.messaging.checkpoint_messages import FilePlaced, PlaceFile
from procsv.ipc.shm.file_parcel import FileOrder, ParcelWriter, place_parcel, sweep_unfinished
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.log import log

WAITING_MAX = 2  # files; each holds the memory of a model.  With more of them the training thread waits
PLACED_S_MAX = 900.0  # a disk may be slow

Fill = Callable[[ParcelWriter], None]

_numbers = 0  # of the parcels of this process


class FileWriter:
    """The files of one fit, in their order."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._news = threading.Condition()
        self._waiting: deque[tuple[FileOrder, Fill]] = deque()
        self._thread: threading.Thread | None = None
        self.captured = 0  # files
        self._made = 0  # of them: whole, or given up
        self._said_full = False

    def submit(self, order: FileOrder, fill: Fill) -> None:
        """Has the file of `order` written, whose contents `fill` writes into a parcel.  Waits while too many wait already."""
        with self._news:
            if len(self._waiting) >= WAITING_MAX:
                with self._runtime.heartbeat.saving():
                    self._news.wait_for(lambda: len(self._waiting) < WAITING_MAX)
            self._waiting.append((order, fill))
            self.captured += 1
            if self._thread is None:
                # No daemon: a program that ends has its files written before.  It ends by itself when it has nothing to do.
                self._thread = threading.Thread(target=self._write_files, name="procsv-files")
                self._thread.start()

    def wait_made(self, count: int) -> None:
        """Waits until the first `count` files outlive this process.  Not for the training thread."""
        with self._news:
            self._news.wait_for(lambda: self._made >= count)

    def wait_placed(self) -> None:
        """Waits until all files are in their places, or could not be put there."""
        with self._runtime.heartbeat.saving(), self._news:
            self._news.wait_for(lambda: self._thread is None)

    def _write_files(self) -> None:
        try:
            while (item := self._next()) is not None:
                try:
                    self._place(self._make(*item), item[0])
                except (OSError, TimeoutError, PeerError) as error:
                    log.error("procsv: %s is not written: %s", item[0].path, error)
                del item
                with self._news:
                    self._waiting.popleft()
                    self._made = max(self._made, self.captured - len(self._waiting))
                    self._news.notify_all()
        finally:  # also of an error of ours, which the interpreter reports: nobody waits for ever
            with self._news:
                self._thread = None
                self._made = self.captured
                self._waiting.clear()
                self._news.notify_all()

    def _next(self) -> tuple[FileOrder, Fill] | None:
        """The next file; None, and nothing more is done on this thread, if there is none."""
        with self._news:
            if self._waiting:
                return self._waiting[0]
            self._thread = None
            self._news.notify_all()
            return None

    def _make(self, order: FileOrder, fill: Fill) -> Path:
        """The parcel: in shared memory, or beside the file where there is no room."""
        global _numbers
        start = self._runtime.connection.start
        _numbers += 1
        for directory in (start.paths.shm_dir, Path(order.path).parent):
            try:
                with ParcelWriter(directory, start.incarnation, _numbers) as parcel:
                    fill(parcel)
                    path = parcel.publish_parcel(order)
                break
            except OSError as error:
                if directory != start.paths.shm_dir:
                    raise
                if not self._said_full:
                    self._said_full = True
                    log.warning("procsv: %s is not written by way of shared memory: %s", order.path, error)
        if path.parent == start.paths.shm_dir:
            with self._news:
                self._made += 1
                self._news.notify_all()
        return path

    def _place(self, parcel: Path, order: FileOrder) -> None:
        start = self._runtime.connection.start
        if parcel.parent == start.paths.shm_dir:
            try:
                answer = self._runtime.connection.link.ask(CHECKPOINT, PlaceFile(str(parcel)), PLACED_S_MAX).body
            except PeerError as lost:
                log.warning("procsv: %s is written by the program's process: %s", order.path, lost)
            else:
                if isinstance(answer, FilePlaced) and answer.error:
                    log.error("procsv: %s; it is tried again", answer.error)
                return
        place_parcel(parcel)


def sweep(runtime: Runtime) -> None:
    """Removes what an attempt before this one was making when it died."""
    sweep_unfinished(runtime.connection.start.paths.shm_dir)
