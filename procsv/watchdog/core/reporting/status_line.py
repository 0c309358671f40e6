"""Render the status line of a launch on a terminal. Facts and a width go in, one line comes out.

Used by edge/console.py. Pure; edge/screen.py draws the line.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from procsv.base.outcome import NO_STEP, FitPlace, Loss
from procsv.base.units import show_count, show_duration

if TYPE_CHECKING:
    from procsv.base.run.run_file import RunFile

RATE_S = 30.0  # the rate covers this much time
LOOKS_MAX = 120  # readings (time and step) that are kept for the rate
SOON_S = 0.5  # if the next start is due sooner than this, do not show how long it takes
NAME_CHARS = 24  # of a loss's name
_MARK, _BETWEEN = "▸ ", " · "
_WORDS = {
    "pending": "starting Python",
    "connected": "running, no step yet",
    "compiling": "the first step",
    "backoff": "waiting to start again",
}


class LineFacts(msgspec.Struct, frozen=True):
    state: str
    state_s: float  # how long it has been in that state
    step: int = NO_STEP
    steps_total: int = NO_STEP  # if known
    steps_per_s: float | None = None
    durable_step: int = NO_STEP
    durable_s: float | None = None  # time since that step was first seen on disk
    restarts: int = 0
    goodput: float = 0.0
    next_start_s: float | None = None
    trouble: str = ""  # what needs the user's attention
    fit: FitPlace | None = None
    unit: str = "step"
    loss: Loss | None = None


class StatusLine(msgspec.Struct):
    """Remember what the line shows about the past: the rate, and since when the state lasts."""

    _state: str = ""
    _state_s: float = 0.0
    _attempt: int = 0  # 0: no facts were read yet
    _durable_step: int = NO_STEP
    _durable_s: float | None = None  # when that step was first seen on disk; None: an earlier launch saved it
    _looks: deque[tuple[float, int]] = msgspec.field(default_factory=lambda: deque(maxlen=LOOKS_MAX))

    def read_facts(self, run: RunFile, now_s: float) -> LineFacts:
        """Return the current facts, without the loss, which console.py adds."""
        state = f"importing {run.importing}" if run.importing else run.state
        if state != self._state:
            self._state, self._state_s = state, now_s
        if run.durable_step != self._durable_step:
            # If an earlier launch saved this state, we do not know when.
            self._durable_s = now_s if self._attempt else None
            self._durable_step = run.durable_step
        if run.incarnation != self._attempt or run.state != "running":
            self._attempt = run.incarnation
            self._looks.clear()
        if run.state == "running":
            self._looks.append((now_s, run.step))
            while now_s - self._looks[0][0] > RATE_S:
                self._looks.popleft()
        return LineFacts(
            state=state,
            state_s=now_s - self._state_s,
            step=run.step,
            steps_total=run.steps_total,
            steps_per_s=self._rate(),
            durable_step=run.durable_step,
            durable_s=None if self._durable_s is None else now_s - self._durable_s,
            restarts=run.restarts,
            goodput=run.goodput,
            next_start_s=run.next_restart_in,
            trouble=_trouble(run),
            fit=run.fit,
            unit=run.habit.unit,
        )

    def _rate(self) -> float | None:
        if not self._looks:
            return None
        (first_s, first), (last_s, last) = self._looks[0], self._looks[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s and last >= first else None


def _trouble(run: RunFile) -> str:
    if run.save_error:
        return "not saved"
    nothing = "nothing is restored" if run.habit.restores is False else "nothing is saved"
    return nothing if run.protected is False else ""


def render(facts: LineFacts, width: int) -> str:
    """Return one line of at most `width` columns. If there is not enough room, leave out the least
    important parts.
    """
    parts = [part for part in _parts(facts) if part[1]]
    while len(parts) > 1 and _width(parts) > width:
        parts.remove(max(parts))
    line = _MARK + _BETWEEN.join(text for _, text in parts)
    return line if len(line) <= width else line[: width - 1] + "…"


def _parts(facts: LineFacts) -> list[tuple[int, str]]:
    """Return the rank and text of each part. Rank 0 is the most important. A part may be empty."""
    is_running = facts.state == "running"
    return [
        (0, "" if is_running else _state(facts)),
        (1, _step(facts)),
        (5, _loss(facts.loss) if is_running and facts.loss is not None else ""),
        (3, _rate(facts.steps_per_s) if is_running and facts.steps_per_s and not _is_at_end(facts) else ""),
        (4, _left(facts) if is_running else ""),
        (6, _saved(facts)),
        (2, facts.trouble),
        (7, show_count(facts.restarts, "restart") if facts.restarts else ""),
        (8, f"goodput {facts.goodput:.0%}" if is_running else ""),
    ]


def _width(parts: list[tuple[int, str]]) -> int:
    return len(_MARK) + sum(len(text) for _, text in parts) + len(_BETWEEN) * (len(parts) - 1)


def _state(facts: LineFacts) -> str:
    if facts.next_start_s is not None and facts.next_start_s < SOON_S:
        return "starting again"  # at once, or when the standby is ready
    if facts.next_start_s is not None:
        return f"starting again in {facts.next_start_s:.0f} s"
    return f"{_WORDS.get(facts.state, facts.state)}, {_whole(facts.state_s)}"


def _step(facts: LineFacts) -> str:
    if facts.step < 0:
        return ""
    if facts.steps_total <= 0:
        return f"{facts.unit} {facts.step:,}" + (f" ({facts.fit})" if facts.fit is not None else "")
    return f"step {facts.step:,} of {facts.steps_total:,} ({min(1.0, facts.step / facts.steps_total):.0%})"


def _loss(loss: Loss) -> str:
    return f"{loss.name[:NAME_CHARS]} {loss.value:.4g} at {loss.step:,}"


def _rate(steps_per_s: float) -> str:
    if steps_per_s < 0.1:
        return f"{show_duration(1 / steps_per_s)} a step"
    return f"{steps_per_s:,.0f}/s" if steps_per_s >= 100 else f"{steps_per_s:.3g}/s"


def _left(facts: LineFacts) -> str:
    left = facts.steps_total - facts.step if facts.steps_total > 0 or facts.fit is None else facts.fit.batches_left
    return f"{_whole(left / facts.steps_per_s)} left" if left > 0 and facts.steps_per_s else ""


def _is_at_end(facts: LineFacts) -> bool:
    """Whether the last step is done, so that the rate of the last half minute no longer applies."""
    if facts.steps_total > 0:
        return facts.step >= facts.steps_total
    return facts.fit is not None and facts.fit.batches > 0 and not facts.fit.batches_left


def _saved(facts: LineFacts) -> str:
    if facts.durable_step < 0:
        return ""
    ago = f", {_whole(facts.durable_s)} ago" if facts.durable_s is not None else ""
    return f"saved at {facts.durable_step:,}{ago}"


def _whole(seconds: float) -> str:
    return show_duration(seconds) if seconds >= 10 else f"{seconds:.0f} s"
