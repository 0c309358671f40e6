"""Store of a run's event streams: those being written, and those that a killed process left behind.

Called by process.py, from one thread.  Never decides what is news; that is core.py's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from procsv.base.errors import PeerError
from procsv.base.identity import TaskId
from procsv.base.json_data import decode_sealed
from procsv.base.run.paths import RunPaths
from procsv.ipc.messaging.event_backlog import PARCEL_GLOB, parcel_writer
from procsv.ipc.messaging.summary_messages import Written
from procsv.services.summary.core import attempt_of
from procsv.services.summary.stream_file import Position, Stream, say


class StreamStore:
    """The streams by name."""

    def __init__(self, paths: RunPaths, run: str) -> None:
        self._paths = paths
        self._run = run
        self._streams: dict[str, Stream] = {}
        self._trouble = ""  # with the disk, as last reported
        self._unrepaired = self._left_behind()  # name -> position, and why the disk does not let us continue

    # -- what another process left -------------------------------------------------------------------------
    def _left_behind(self) -> dict[str, tuple[Position, str]]:
        found: dict[str, tuple[Position, str]] = {}
        for path in sorted(self._paths.run_dir.glob("events.*.pos")):
            try:
                position = decode_sealed(path.read_bytes(), Position)
                attempt_of(position.writer)
            except (OSError, msgspec.DecodeError, PeerError) as error:
                say(f"{path} is not a position file: {error}")  # its stream is unknown then, and opened again
                with contextlib.suppress(OSError):
                    path.unlink()
            else:
                found[position.writer] = (position, "the event file is being repaired")
        return found

    def repair(self) -> list[tuple[str, int]]:
        """Repairs files that were left with a torn end; returns (name, through) of each stream that can continue.

        A stream of another run is repaired and ended: its trainer is dead, and a new one may use its name.
        """
        repaired: list[tuple[str, int]] = []
        for writer, (position, trouble) in list(self._unrepaired.items()):
            stream = Stream(self._paths, position.run, writer, Path(position.logdir), position.suffix)
            try:
                stream.take_over(position)
            except OSError as error:
                if str(error) != trouble:
                    say(f"cannot repair {position.file}: {error}; trying again")
                self._unrepaired[writer] = (position, str(error))
                continue
            del self._unrepaired[writer]
            if position.run == self._run:
                self._streams[writer] = stream
                repaired.append((writer, stream.through))
            else:
                stream.close_file()
        return repaired

    def not_now(self, writer: str) -> Written | None:
        """The answer for a stream that is not repaired yet: nothing is taken, and nothing is known to be missing."""
        if writer not in self._unrepaired:
            return None
        position, error = self._unrepaired[writer]
        return Written(writer, position.through if position.run == self._run else 0, error)

    def purge(self, task: TaskId, incarnation: int) -> None:
        """Removes the parcels of a task's attempts before `incarnation`; they may have died before sending them."""
        for directory in (self._paths.shm_dir, self._paths.run_dir):
            for path in directory.glob(PARCEL_GLOB):
                with contextlib.suppress(OSError, PeerError):
                    owner, number = attempt_of(parcel_writer(path.name))
                    if owner == task and number < incarnation:
                        path.unlink()

    # -- what core.py decides ------------------------------------------------------------------------------
    def open_stream(self, writer: str, logdir: str, suffix: str) -> None:
        self._streams[writer] = Stream(self._paths, self._run, writer, Path(logdir), suffix)

    def append_records(self, writer: str, records: Sequence[bytes | Path], wall_s: float) -> str:
        """Returns why the records are not in the file; "" if they and the position are."""
        stream = self._streams[writer]
        try:
            stream.append(records, wall_s)
        except OSError as error:
            trouble = f"{stream.logdir}: {error}"
            if trouble != self._trouble:
                say(f"{trouble}; the records are kept and tried again")
            self._trouble = trouble
            return trouble
        if self._trouble:
            say("records are written to their files again")
            self._trouble = ""
        return ""

    def end_stream(self, writer: str) -> None:
        self._streams.pop(writer).close_file()

    def close(self) -> None:
        """Closes the files.  Streams that were not ended keep their positions, and the next process continues them."""
        for stream in self._streams.values():
            stream.close_file(forget=False)
        self._streams.clear()
