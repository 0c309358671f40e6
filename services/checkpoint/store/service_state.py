"""Keep the part of the service's state that outlives a run, in `procsv/checkpoints.json`.

The store uses it. If the file is lost, the damage is small: one checkpoint more or less is kept
permanently, an earlier run's snapshot in shared memory is not restored, and a restarted service may
take a URL back from a later run.
"""

from __future__ import annotations

import contextlib
import math
import sys
from pathlib import Path

import msgspec

from procsv.base.encoding import decode_sealed, encode_json, seal
from procsv.base.system import disk, stale
from procsv.base.system.atomic_file import replace_file, set_aside
from procsv.base.system.data_file import read_data

NAME = "checkpoints.json"


class _Contents(msgspec.Struct):
    runs: list[str] = []  # the runs whose snapshots in shared memory belong to this logdir
    claims: dict[str, str] = {}  # URL of a directory -> the last run on this machine that has taken it
    next_keep: dict[str, float] = {}  # basename -> when to keep the next checkpoint permanently (Unix seconds)


class StoredState:
    """The file in `home`. Each call reads it again."""

    def __init__(self, home: Path) -> None:
        self._path = home / NAME

    def _read_contents(self) -> _Contents:
        try:
            return decode_sealed(stale.try_again(lambda: read_data(self._path)), _Contents)
        except OSError:
            return _Contents()
        except msgspec.DecodeError:
            with contextlib.suppress(OSError):
                kept = set_aside(self._path)
                print(
                    f"procsv checkpoint: {self._path} was damaged: it is {kept.name} now", file=sys.stderr, flush=True
                )
            return _Contents()

    def _write_contents(self, contents: _Contents) -> None:
        with contextlib.suppress(OSError):  # a logdir that cannot be written is reported by the first save
            disk.make_dirs(self._path.parent)
            replace_file(self._path, seal(encode_json(contents)))

    def runs(self) -> set[str]:
        return set(self._read_contents().runs)

    def note_runs(self, runs: list[str]) -> None:
        contents = self._read_contents()
        contents.runs = runs
        self._write_contents(contents)

    def claims(self, directory: str) -> str:
        """Return the last run on this machine that has taken `directory`; "" if none has."""
        return self._read_contents().claims.get(directory, "")

    def note_claim(self, directory: str, run: str) -> None:
        contents = self._read_contents()
        contents.claims[directory] = run
        self._write_contents(contents)

    def next_keep(self, base: str, unknown: float) -> float:
        return self._read_contents().next_keep.get(base, unknown)

    def note_next_keep(self, base: str, next_keep: float) -> None:
        contents = self._read_contents()
        if next_keep != contents.next_keep.get(base) and next_keep != math.inf:
            contents.next_keep[base] = next_keep
            self._write_contents(contents)
