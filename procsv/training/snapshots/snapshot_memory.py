"""Memory for snapshots: had by one backend, had anew where somebody has removed it, and done without by the other backend.

Used by snapshotter.py and snapshot_publisher.py.  Any thread; the worker alone looks for what was removed.
"""

from __future__ import annotations

from procsv.base.errors import UserError
from procsv.base.journal.entries import GroundLost, GroundRestored
from procsv.ipc.shm.slot_file import NoRoom
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.log import log
from procsv.training.snapshots.backends import SnapshotBackend
from procsv.training.snapshots.cadence import STAGED_SHARE_MAX, Cadence
from procsv.training.snapshots.guarded_queue import GuardedQueue
from procsv.training.snapshots.source import StateSource

STAGED_S_MIN = 1.0  # between two snapshots that are files
SLOT = "slot"  # what is lost, in the journal


class SnapshotMemory:
    """`backend` is the one to use now."""

    def __init__(
        self,
        runtime: Runtime,
        source: StateSource,
        backends: tuple[SnapshotBackend, SnapshotBackend],
        cadence: Cadence,
        guarded: GuardedQueue,
    ) -> None:
        """`backends`: the one to use, and the one for when there is no memory for the first."""
        self._runtime, self._clock, self._source, self._cadence = runtime, runtime.clock, source, cadence
        self.backend, self._fallback = backends
        self._left: SnapshotBackend | None = None  # the one that had no room any more
        self._guarded, self._changed = guarded, guarded.changed
        self._is_reserved = False  # by `_changed`

    def reserve(self) -> None:
        """Gets the memory for snapshots, or says once why there is none and falls back.  Any thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_reserved or not self._guarded.is_busy)
            if self._is_reserved:
                return
            self._guarded.is_reserving = True
        self._get_memory()

    @property
    def is_awaited(self) -> bool:
        """Whether the next capture waits until the memory is there.  By the lock."""
        return self._guarded.is_reserving and not self.backend.captures_ahead()

    def fall_back(self, failure: Exception) -> None:
        """From here on by the other backend; said once."""
        if self.backend is self._fallback:
            return
        more = f" of {mebibytes} MiB or more" if (mebibytes := -(-self.backend.room_bytes() // 2**20)) else ""
        log.warning(
            "procsv: no snapshots in memory: %s.  The training thread writes them to disk instead, %s; a crash costs what was trained "
            "since the last one.  For snapshots in memory, give /dev/shm room%s: docker run --shm-size=…, or in Kubernetes a volume there "
            "with emptyDir.medium: Memory",
            failure,
            "as often as --snapshot-secs says"
            if self._cadence.fixed_s is not None
            else f"about one a minute, which takes up to {100 * STAGED_SHARE_MAX:g} % of its time",
            more,
        )
        self._left, self.backend = self.backend, self._fallback
        self._cadence.least_s, self._cadence.is_staged = STAGED_S_MIN, True

    def renew_memory(self) -> None:
        """Gets the memory anew if somebody has removed it, and has what lay in it captured again."""
        loss, seen_s = self.backend.find_loss(), self._clock.monotonic()
        if loss is None:
            self._source.keep_files()
        with self._changed:
            if loss is None:
                self._guarded.queue.looked(seen_s, is_lost=False)
                return
            self._changed.wait_for(lambda: not self._guarded.is_busy)
            if self._guarded.finishes:
                return  # a capture holds a slot: it is copied first, then this comes again
            self._guarded.is_reserving = True
        log.warning("procsv: %s was removed under the run: snapshots go into new memory", loss.path)
        if loss.is_alone:
            self._runtime.connection.note_entry(GroundLost(what=SLOT, path=str(loss.path)))
        self._get_memory(is_lost=True)
        if loss.is_alone:
            seconds = round(self._clock.monotonic() - seen_s, 3)
            self._runtime.connection.note_entry(GroundRestored(what=SLOT, path=str(loss.path), seconds=seconds))

    def close(self) -> None:
        """Lets go of source and slots; what lies in the slots stays for whoever needs it."""
        self.backend.close()
        if self._left is not None:
            self._left.close()

    def _get_memory(self, is_lost: bool = False) -> None:
        """`is_lost`: what it had was removed.  `is_reserving` is set, and is not at the end."""
        try:
            self.backend.reserve()
        except (NoRoom, OSError, UserError) as failure:
            self.fall_back(failure)
        finally:
            self._source.keep_files()  # before anything is captured that needs them
            with self._guarded.change() as queue:
                self._guarded.is_reserving, self._is_reserved = False, True
                queue.looked(self._clock.monotonic(), is_lost)
