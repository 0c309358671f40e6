"""Notice when something removes a directory, socket or lock of a run, and have it recreated.

Pure. service_events.py passes in the result of a check every few seconds, and run.py what could
not be recreated. If a directory is lost, the loss of the files in it is not reported separately.
The directory counts as restored once all these files are back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from procsv.base.identity import WATCHDOG, TaskId
from procsv.base.journal import entries
from procsv.base.units import show_duration
from procsv.watchdog.core.actions import Action, RestoreFile, Say, WriteEntry
from procsv.watchdog.core.events import FileState

LOGDIR, RUN_DIR, SHM_DIR, SOCKET, LOCK = "logdir", "runtime directory", "shared memory", "socket", "lock"


class RemovedFile(msgspec.Struct):
    what: str
    since_s: float
    is_reported_elsewhere: bool
    error: str = ""  # why it cannot be recreated


class RunFilesWatch(msgspec.Struct):
    """The last known identity of each path, and which paths are lost now."""

    known: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    losses: dict[str, RemovedFile] = msgspec.field(default_factory=dict)
    # Files of other processes that the last check did not find. They count as lost only if the next check does not find
    # them either: the process that owns a file removes it when it ends.
    doubts: set[str] = msgspec.field(default_factory=set)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is lost or in doubt, so that the next check can wait."""
        return not self.losses and not self.doubts

    @property
    def error(self) -> str:
        """Describe what is lost now; "" if nothing is."""
        return "; ".join(
            f"the {loss.what} {path} is gone{f' ({loss.error})' if loss.error else ''}"
            for path, loss in self.losses.items()
        )

    def check_files(self, states: Sequence[FileState], now_s: float) -> list[Action]:
        """Return the actions after a check. A directory in `states` comes before its files."""
        out: list[Action] = []
        for state in states:
            if self._is_lost(state):
                out += self._lose(state, now_s)
            if state.identity is not None:
                self.known[state.path] = state.identity
            elif state.owner == WATCHDOG:
                out.append(RestoreFile(state.what, state.path))
        for path in [path for path in self.losses if self._is_back(path, states)]:
            out += self._restore(path, now_s)
        return out

    def not_restored(self, path: str, error: str) -> list[Action]:
        loss = self.losses.get(path)
        if loss is None or loss.error == error:
            return []
        loss.error = error
        if loss.is_reported_elsewhere:
            return []
        return [Say(f"the {loss.what} {path} cannot be recreated: {error}; trying again", is_bad=True)]

    def forget_files(self, owner: TaskId, states: Iterable[FileState]) -> None:
        """Forget the files in `states` that `owner` made.

        `owner` is a service whose process does not serve any more, or was replaced. The next
        process makes new files.
        """
        for state in states:
            if state.owner == owner:
                self.known.pop(state.path, None)
                self.losses.pop(state.path, None)
                self.doubts.discard(state.path)

    def _is_lost(self, state: FileState) -> bool:
        if state.path in self.losses or _directory(state.path) in self.losses:
            return False
        if state.identity is None and state.owner != WATCHDOG and state.path not in self.doubts:
            self.doubts.add(state.path)
            return False
        self.doubts.discard(state.path)
        return state.identity is None or state.identity != self.known.get(state.path, state.identity)

    def _lose(self, state: FileState, now_s: float) -> list[Action]:
        self.losses[state.path] = RemovedFile(state.what, now_s, state.is_reported_elsewhere)
        out: list[Action] = [WriteEntry(entries.GroundLost(what=state.what, path=state.path), WATCHDOG, 1)]
        if not state.is_reported_elsewhere:
            out.append(Say(f"something removed the {state.what} {state.path}; the run goes on", is_bad=True))
        return out

    def _is_back(self, path: str, states: Sequence[FileState]) -> bool:
        """Whether `path` exists again, with all files in it that `states` names."""
        return all(state.identity is not None for state in states if path in (state.path, _directory(state.path)))

    def _restore(self, path: str, now_s: float) -> list[Action]:
        loss = self.losses.pop(path)
        seconds = now_s - loss.since_s
        restored = WriteEntry(entries.GroundRestored(what=loss.what, path=path, seconds=round(seconds, 3)), WATCHDOG, 1)
        if loss.is_reported_elsewhere:
            return [restored]
        text = f"the {loss.what} {path} is there again, after {show_duration(seconds)}"
        return [restored, Say(text)]


def _directory(path: str) -> str:
    return path.rpartition("/")[0]
