"""The ground that a run stands on: its directories, the sockets and locks in them, and what of it is lost now.

Used by run.py, which hands in what was seen of it every few seconds.  Pure.  What lies in a lost directory is lost with it, and
no news of its own: the directory is restored when all that was in it is back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from procsv.base.identity import WATCHDOG, TaskId
from procsv.base.journal import entries
from procsv.base.units import show_duration
from procsv.watchdog.core.actions import Action, Journal, Restore, Say
from procsv.watchdog.core.events import Sight

LOGDIR, RUN_DIR, SHM_DIR, SOCKET, LOCK = "logdir", "runtime directory", "shared memory", "socket", "lock"


class Loss(msgspec.Struct):
    what: str
    since_s: float
    is_said_by_others: bool
    error: str = ""  # why it cannot be made anew


class Ground(msgspec.Struct):
    """What is known of each path, and since when it is lost."""

    known: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    losses: dict[str, Loss] = msgspec.field(default_factory=dict)
    # What another process has and was missed once: it may just be dying.
    doubts: set[str] = msgspec.field(default_factory=set)

    @property
    def is_settled(self) -> bool:
        """Whether the next look can wait."""
        return not self.losses and not self.doubts

    @property
    def error(self) -> str:
        """What is lost now, in words; "" if nothing is."""
        return "; ".join(
            f"the {loss.what} {path} is gone{f' ({loss.error})' if loss.error else ''}"
            for path, loss in self.losses.items()
        )

    def look(self, sights: Sequence[Sight], now_s: float) -> list[Action]:
        """What is to be done about what is seen now; a directory comes before what lies in it."""
        out: list[Action] = []
        for sight in sights:
            if self._is_lost(sight):
                out += self._lose(sight, now_s)
            if sight.identity is not None:
                self.known[sight.path] = sight.identity
            elif sight.owner == WATCHDOG:
                out.append(Restore(sight.what, sight.path))
        for path in [path for path in self.losses if self._is_back(path, sights)]:
            out += self._restore(path, now_s)
        return out

    def not_restored(self, path: str, error: str) -> list[Action]:
        loss = self.losses.get(path)
        if loss is None or loss.error == error:
            return []
        loss.error = error
        if loss.is_said_by_others:
            return []
        return [Say(f"the {loss.what} {path} cannot be made anew: {error}; trying again", is_bad=True)]

    def forget(self, owner: TaskId, sights: Iterable[Sight]) -> None:
        """A process has ended: what it had is made by its successor, which is no loss."""
        for sight in sights:
            if sight.owner == owner:
                self.known.pop(sight.path, None)
                self.losses.pop(sight.path, None)
                self.doubts.discard(sight.path)

    def _is_lost(self, sight: Sight) -> bool:
        if sight.path in self.losses or _directory(sight.path) in self.losses:
            return False
        if sight.identity is None and sight.owner != WATCHDOG and sight.path not in self.doubts:
            self.doubts.add(sight.path)
            return False
        self.doubts.discard(sight.path)
        return sight.identity is None or sight.identity != self.known.get(sight.path, sight.identity)

    def _lose(self, sight: Sight, now_s: float) -> list[Action]:
        self.losses[sight.path] = Loss(sight.what, now_s, sight.is_said_by_others)
        out: list[Action] = [Journal(entries.GroundLost(what=sight.what, path=sight.path), WATCHDOG, 1)]
        if not sight.is_said_by_others:
            out.append(Say(f"something removed the {sight.what} {sight.path}; the run goes on", is_bad=True))
        return out

    def _is_back(self, path: str, sights: Sequence[Sight]) -> bool:
        """Whether it is there again, and all that was in it."""
        return all(sight.identity is not None for sight in sights if path in (sight.path, _directory(sight.path)))

    def _restore(self, path: str, now_s: float) -> list[Action]:
        loss = self.losses.pop(path)
        seconds = now_s - loss.since_s
        restored = Journal(entries.GroundRestored(what=loss.what, path=path, seconds=round(seconds, 3)), WATCHDOG, 1)
        if loss.is_said_by_others:
            return [restored]
        text = f"the {loss.what} {path} is there again, after {show_duration(seconds)}"
        return [restored, Say(text)]


def _directory(path: str) -> str:
    return path.rpartition("/")[0]
