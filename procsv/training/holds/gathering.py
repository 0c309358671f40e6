"""One hold of the tasks on other machines, as the chief sees it: their answers and the time in, whether all stand out.  Pure.

Used by far_holder.py.  What a task has not said is not so: a hold is whole only if each has said that it stands, before the capture,
and that it has stood all the time since, after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from procsv.base.identity import TaskId
from procsv.training.holds.frames import Answer, Held, Refused, Released, Within


class Said(Enum):
    """What a task has said of this hold last."""

    NOTHING = "has not answered"
    WITHIN = "was in a step"
    HELD = "stands"
    REFUSED = "cannot be held"
    WHOLE = "has stood until after the capture"
    BROKEN = "has gone on before it was let go"


class Gathering:
    def __init__(self, tasks: Iterable[TaskId], number: int, begun_s: float, limit_s: float) -> None:
        """`limit_s`: until when all are to stand, from `begun_s` on."""
        self.number, self.begun_s, self._until_s = number, begun_s, begun_s + limit_s
        self.said = dict.fromkeys(tasks, Said.NOTHING)
        self._refusals: dict[TaskId, str] = {}
        self._held_s: dict[TaskId, float] = {}
        self.round_trips: dict[TaskId, float] = {}  # seconds until the first answer of each

    def heard(self, task: TaskId, answer: Answer, now_s: float) -> None:
        """What is of another hold changes nothing."""
        if task not in self.said or getattr(answer, "number", -1) != self.number:
            return
        self.round_trips.setdefault(task, now_s - self.begun_s)
        match answer:
            case Within():
                self.said[task] = Said.WITHIN
            case Held():
                self.said[task] = Said.HELD
            case Refused(_, why):
                self.said[task], self._refusals[task] = Said.REFUSED, why
            case Released(_, is_whole, held_s):
                was_held = self.said[task] is Said.HELD
                self.said[task] = Said.WHOLE if is_whole and was_held else Said.BROKEN
                self._held_s[task] = held_s

    def wait_s(self, now_s: float) -> float:
        """How long it is still worth waiting for all to stand; 0: not at all."""
        if Said.REFUSED in self.said.values() or all(said is Said.HELD for said in self.said.values()):
            return 0.0
        return max(0.0, self._until_s - now_s)

    def why_not_gathered(self, now_s: float) -> str:
        """Why not all stand; "" if they do."""
        for task, said in self.said.items():
            if said is Said.REFUSED:
                return f"{task} {self._refusals[task]}"
        for task, said in self.said.items():
            if said is not Said.HELD:
                return f"{task} {said.value} for {now_s - self.begun_s:.3f} s{' more' if said is Said.WITHIN else ''}"
        return ""

    @property
    def is_decided(self) -> bool:
        """After the capture: whether no answer can change any more what it was."""
        return Said.BROKEN in self.said.values() or all(said is Said.WHOLE for said in self.said.values())

    def why_not_whole(self) -> str:
        """After the capture: why it is not known that all have stood until after it; "" if it is."""
        for task, said in self.said.items():
            if said is Said.BROKEN:
                return f"{task} {said.value}"
        for task, said in self.said.items():
            if said is not Said.WHOLE:
                return f"{task} did not answer when it was let go"
        return ""

    @property
    def silent(self) -> list[TaskId]:
        """Who has said nothing at all."""
        return [task for task, said in self.said.items() if said is Said.NOTHING]

    @property
    def held_s(self) -> float:
        """How long the task that has stood the longest did, by its own clock."""
        return max(self._held_s.values(), default=0.0)
