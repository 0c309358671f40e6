"""The newest values of a training's loss, from its event files or, where they have none, from what it prints.

Used by readings.py.  Reads what is appended, never a file from its beginning once that is long, and changes nothing.
"""

from __future__ import annotations

import collections
import contextlib
import re
from pathlib import Path

from procsv.report.event_files import EventFileTail, Tail, find_loss, newest_event_files, read_scalars

FILES_MAX = 4  # event files that are followed at a time: the newest
VALUES_MAX = 600

_PRINTED = re.compile(rb"\bloss\b[^\w\n]{1,3}([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)", re.IGNORECASE)


class Losses:
    """The last values of the scalar `tag`, or of what looks like the loss; `name` says which it is."""

    def __init__(self, tag: str | None) -> None:
        self._tag = tag
        self._scalars: dict[str, collections.deque[float]] = {}
        self._files: dict[Path, EventFileTail] = {}
        self._log: Tail | None = None
        self._rest = b""
        self._printed: collections.deque[float] = collections.deque(maxlen=VALUES_MAX)

    @property
    def name(self) -> str:
        if self._tag is not None:
            return self._tag
        return find_loss(self._scalars) or "loss"

    @property
    def values(self) -> list[float]:
        return list(self._scalars.get(self.name) or (self._printed if self._tag is None else ()))

    def read_losses(self, logdir: Path, log: Path) -> None:
        """What has been added since the last call; `log` is that of the newest trainer."""
        for path in newest_event_files(logdir, FILES_MAX):
            with contextlib.suppress(OSError):
                if path not in self._files:
                    self._files[path] = EventFileTail(path)
                for record in self._files[path].records():
                    for tag, _, _, value in read_scalars(record):
                        self._scalars.setdefault(tag, collections.deque(maxlen=VALUES_MAX)).append(value)
        if self._tag is None and not self._scalars.get(self.name):
            self._read_log(log)

    def _read_log(self, log: Path) -> None:
        with contextlib.suppress(OSError):
            if self._log is None or self._log.path != log:
                self._log, self._rest = Tail(log), b""
            lines = (self._rest + self._log.read_appended()).replace(b"\r", b"\n").split(b"\n")
            self._rest = lines.pop()[-1000:]
            self._printed += [float(match[1]) for line in lines if (match := _PRINTED.search(line))]
