"""Decide what to tell a service manager (systemd, Type=notify) about a run, and when.

Used by edge/resources/service_manager.py. Pure: facts about the run and the time go in, the lines
of a datagram come out.

    READY=1      once, at the first step; without one, when it is known that procsv does not protect
                 the program, or when the run is complete
    STATUS=…     when the state changes, and every few seconds while the step rises
    WATCHDOG=1   about three times within the manager's limit, while the event loop runs
    STOPPING=1   once, at the end
"""

from __future__ import annotations

import msgspec

from procsv.base import exit_codes
from procsv.base.terminal import printable
from procsv.base.units import show_count

STATUS_S = 5.0
SHARE = 1 / 3  # the next sign of life is due after this share of the manager's limit


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run; the fields are run.json's."""

    state: str
    step: int
    durable_step: int
    restarts: int
    save_error: str | None
    ground_error: str | None
    protected: bool | None
    exit_code: int | None


class ManagerNews:
    def __init__(self, watchdog_s: float | None) -> None:
        """`watchdog_s`: the manager kills us after this many seconds without a sign of life; None:
        it never does.
        """
        self._watchdog_s = watchdog_s
        self._is_ready = self._is_ending = False
        self._state = ""
        self._status = ""
        self._status_s = self._alive_s = float("-inf")

    def lines(self, run: Standing, now_s: float) -> list[str]:
        """Return the lines to send now; none if there is nothing new."""
        return [*self._phase(run), *self._status_lines(run, now_s), *self._sign_of_life(now_s)]

    def _phase(self, run: Standing) -> list[str]:
        found = []
        trains = run.state == "running" or run.protected is False or run.exit_code == exit_codes.DONE
        if trains and not self._is_ready:
            self._is_ready = True
            found.append("READY=1")
        if run.exit_code is not None and not self._is_ending:
            self._is_ending = True
            found.append("STOPPING=1")
        return found

    def _status_lines(self, run: Standing, now_s: float) -> list[str]:
        text = _sentence(run)
        is_due = run.state != self._state or now_s >= self._status_s + STATUS_S
        if text == self._status or not is_due:
            return []
        self._state, self._status, self._status_s = run.state, text, now_s
        return [f"STATUS={text}"]

    def _sign_of_life(self, now_s: float) -> list[str]:
        if self._watchdog_s is None or now_s < self._alive_s + self._watchdog_s * SHARE:
            return []
        self._alive_s = now_s
        return ["WATCHDOG=1"]


def _sentence(run: Standing) -> str:
    """Describe the run on one line: `running at step 3812, step 3800 on disk, 2 restarts`."""
    parts = [run.state + (f" at step {run.step}" if run.step >= 0 else "")]
    if run.durable_step >= 0:
        parts.append(f"step {run.durable_step} on disk")
    if run.restarts:
        parts.append(show_count(run.restarts, "restart"))
    if trouble := run.save_error or run.ground_error:
        parts.append(f"not saved: {trouble}")
    return printable(", ".join(parts)).replace("\n", " ")
