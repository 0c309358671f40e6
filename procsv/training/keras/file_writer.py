"""Write the files of a fit from captured variables, on a thread of its own.

A Fit makes the FileWriter. The thread builds each file in shared memory (a *parcel*), from where
the checkpoint service writes it to disk even if this process dies. A snapshot may record that a
file was saved. So a snapshot is published only when every file that was captured before it is
complete in shared memory. The snapshot worker waits for that, off the training thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from procsv.base.errors import PeerError
from procsv.base.identity import CHECKPOINT
from procsv.ipc.messaging.checkpoint_messages import FilePlaced, PlaceFile
from procsv.ipc.shm.file_parcel import (
    BadParcel,
    FileOrder,
    ParcelWriter,
    list_parcels,
    place_parcel,
    read_order,
    sweep_unfinished,
)
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.log import log

WAITING_MAX = 2  # files; each holds as much memory as a model, so with more of them the training thread waits
PLACED_S_MAX = 900.0  # a disk may be slow

Fill = Callable[[ParcelWriter], None]

_numbers = 0  # parcels that this process has made


class FileWriter:
    """Writes the files of one fit in order."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._news = threading.Condition()
        self._waiting: deque[tuple[FileOrder, Fill]] = deque()
        self._thread: threading.Thread | None = None
        self.captured = 0  # how many files were submitted; their variables are captured
        self._made = 0  # how many of these are complete on disk or in shared memory, or were given up
        self._said_full = False

    def submit(self, order: FileOrder, fill: Fill) -> None:
        """Have the file of `order` written. `fill` writes its contents into a parcel.

        Waits while too many files are waiting.
        """
        with self._news:
            if len(self._waiting) >= WAITING_MAX:
                with self._runtime.heartbeat.saving():
                    self._news.wait_for(lambda: len(self._waiting) < WAITING_MAX)
            self._waiting.append((order, fill))
            self.captured += 1
            if self._thread is None:
                # Not a daemon thread: a program that exits waits until its files are written. The thread ends when it
                # has nothing to do.
                self._thread = threading.Thread(target=self._write_files, name="procsv-files")
                self._thread.start()

    def wait_made(self, count: int) -> None:
        """Wait until the first `count` files would outlive this process.

        The snapshot worker calls this. The training thread calls it only to write a checkpoint
        itself.
        """
        with self._news:
            self._news.wait_for(lambda: self._made >= count)

    def wait_written(self) -> None:
        """Wait until all files are in their places, or could not be put there."""
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
        finally:  # also after an error of our own, which the interpreter reports, so that nobody waits forever
            with self._news:
                self._thread = None
                self._made = self.captured
                self._waiting.clear()
                self._news.notify_all()

    def _next(self) -> tuple[FileOrder, Fill] | None:
        """Return the next file. If there is none, return None and end this thread."""
        with self._news:
            if self._waiting:
                return self._waiting[0]
            self._thread = None
            self._news.notify_all()
            return None

    def _make(self, order: FileOrder, fill: Fill) -> Path:
        """Make the parcel in shared memory, or beside the file if shared memory has no room."""
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
                    log.warning("procsv: %s is not written through shared memory: %s", order.path, error)
        if path.parent == start.paths.shm_dir:
            with self._news:
                self._made += 1
                self._news.notify_all()
        return path

    def _place(self, parcel: Path, order: FileOrder) -> None:
        # The checkpoint service puts the file in place. If it cannot, it tries again by itself. If the parcel is not in
        # shared memory, or the service is lost, put the file in place here.
        start = self._runtime.connection.start
        if parcel.parent == start.paths.shm_dir:
            try:
                answer = self._runtime.connection.link.ask(CHECKPOINT, PlaceFile(str(parcel)), PLACED_S_MAX).body
            except PeerError as lost:
                log.warning("procsv: %s is written by the program's process: %s", order.path, lost)
            else:
                if isinstance(answer, FilePlaced) and answer.error:
                    log.error("procsv: %s; trying again", answer.error)
                return
        # The service may still try to place an older file of this name, which must not replace the newer one.
        # A kill here loses the older file, and the newer one is made again or placed by the next service.
        for older in list_parcels(start.paths.shm_dir):
            with contextlib.suppress(OSError, BadParcel):
                if older != parcel and read_order(older).path == order.path:
                    older.unlink()
        place_parcel(parcel)


def sweep(runtime: Runtime) -> None:
    """Remove parcels that an earlier attempt had not finished when it died."""
    sweep_unfinished(runtime.connection.start.paths.shm_dir)
