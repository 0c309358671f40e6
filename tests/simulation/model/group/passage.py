"""Where the steps of a task pass, and who holds them while the chief captures: here nobody does; machines/holds.py has those that are held."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from procsv.ipc.messaging.messages import Body

if TYPE_CHECKING:
    from tests.simulation.model.program_process import Doing, Wait


class OpenPassage:
    """Of a worker."""

    def open_steps(self) -> None:
        """Its steps pass here from now on."""

    def enter(self) -> Doing:
        """Before a step."""
        yield from ()

    def step_s(self, step_s: float) -> float:
        """How long the step takes; `step_s`: where they are all alike."""
        return step_s

    def leave(self) -> None:
        """After it."""

    def end(self) -> None:
        """The program has ended by itself."""

    def hear(self, body: Body) -> None:
        """From its watchdog."""

    def close(self) -> None:
        """The process is dead."""


class NoHolder:
    """Of a chief."""

    def capture(self, take: Callable[[], int | None]) -> Generator[Wait, bool, int | None]:
        """`take`, while the others stand, or as good as can be had."""
        yield from ()
        return take()

    def stepped(self) -> None:
        """The chief has made one itself."""

    def hear(self, body: Body) -> None:
        """From its watchdog."""

    def close(self) -> None:
        """The process is dead."""
