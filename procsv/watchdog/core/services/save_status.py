"""Status of saving, from the checkpoint service's messages: for the journal, the terminal and `status`.

Used by run.py.  Pure.  A failing save is tried again and again; it is journaled and said once for each change of what is
wrong, and shown in `status` until a save succeeds.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from procsv.base.errors import gist
from procsv.base.identity import CHECKPOINT
from procsv.base.journal import entries
from procsv.ipc.messaging.checkpoint_messages import Durable, SavedKey, SaveFailed, Unwritable
from procsv.watchdog.core.actions import Action, Journal, Say

REMEMBERED_MAX = 1000  # checkpoints that are in the journal already


class Saves(msgspec.Struct):
    try_s: float | None = None  # monotonic time of the next try, while saves fail
    _error: str = ""
    _trouble: str = ""
    _said: set[str] = msgspec.field(default_factory=set)  # gists of what was journaled since saving last worked
    _known: OrderedDict[SavedKey, None] = msgspec.field(default_factory=OrderedDict)

    @property
    def error(self) -> str:
        """Why the newest state is not on disk; "" if saving works."""
        return self._error or self._trouble

    def is_news(self, news: Durable) -> bool:
        """Whether this checkpoint has not been heard of: it is said to all, and once more to whoever asked."""
        if news.key in self._known:
            return False
        self._known[news.key] = None
        while len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)
        return True

    def durable(self, news: Durable, incarnation: int) -> list[Action]:
        """What is journaled and said of a checkpoint that is news.  A save of the program's own proves nothing of ours."""
        durable = entries.CheckpointDurable(
            step=news.step,
            path=news.path,
            reason=news.reason,
            bytes=news.bytes,
            seconds=round(news.seconds, 3),
            trainer=news.incarnation,
        )
        out: list[Action] = [Journal(durable, CHECKPOINT, incarnation)]
        if self._error and news.sequence:
            out.append(Say(f"checkpoints are saved again: step {news.step} is on disk"))
            self._error, self.try_s = "", None
            self._said.clear()
        return out

    def failed(self, news: SaveFailed, incarnation: int, now_s: float) -> list[Action]:
        self._error, self.try_s = news.error, now_s + news.retry_in
        text = f"the checkpoint of step {news.step} could not be saved: {news.error}; the last good one stands"
        return self._once(entries.CheckpointFailed(step=news.step, error=news.error), incarnation, text)

    def unwritable(self, news: Unwritable, incarnation: int, step: int) -> list[Action]:
        """The directory of the checkpoints has come to harm, or is well again; `step` is the trainer's."""
        was, self._trouble = self._trouble, news.error
        if news.error:
            text = f"nothing can be saved: {news.error}; training goes on, and so do the tries"
            return self._once(entries.CheckpointFailed(step=step, error=news.error), incarnation, text)
        if not self._error:
            self._said.clear()
        return [Say("checkpoints can be saved again where they belong")] if was else []

    def _once(self, failed: entries.CheckpointFailed, incarnation: int, text: str) -> list[Action]:
        if gist(failed.error) in self._said:
            return []
        self._said.add(gist(failed.error))
        return [Journal(failed, CHECKPOINT, incarnation), Say(text, is_bad=True)]
