"""Represent faults as plain data: action, target and time.

plan_parser.py parses them from text. The trainer carries out the faults that it must do to itself
at a step (`executor`), and the watchdog all others. Each fault is journaled (`fault`) before it
happens, so that it does not happen again if a process is killed and restarted.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from procsv.base.encoding import decode_json, encode_json
from procsv.base.errors import UserError
from procsv.base.identity import TRAINER, WATCHDOG, TaskId
from procsv.base.journal import entries
from procsv.base.journal.line import Line
from procsv.base.outcome import Exit
from procsv.base.service_table import SERVICES
from procsv.base.units import show_duration

Action = Literal["kill", "segfault", "raise", "exit", "stop", "hang", "preempt", "corrupt", "fill", "drop"]

TRAINER_AND_SERVICES = (str(TRAINER), *map(str, SERVICES))


class FaultKind(msgspec.Struct, frozen=True):
    """An action: its possible targets, and the argument that it takes."""

    targets: tuple[str, ...]
    argument: Literal["", "code", "seconds", "grace", "how"] = ""  # "": none
    at_boundary: bool = False  # if due at a step, the trainer does it to itself: a watchdog would see the step too late


ACTIONS: dict[str, FaultKind] = {
    "kill": FaultKind((*TRAINER_AND_SERVICES, "watchdog"), at_boundary=True),  # SIGKILL
    "segfault": FaultKind(TRAINER_AND_SERVICES, at_boundary=True),
    "raise": FaultKind(TRAINER_AND_SERVICES, at_boundary=True),
    "exit": FaultKind(TRAINER_AND_SERVICES, "code", at_boundary=True),
    "stop": FaultKind((*TRAINER_AND_SERVICES, "watchdog"), "seconds"),  # SIGSTOP, and SIGCONT later
    "hang": FaultKind((str(TRAINER),), at_boundary=True),
    "preempt": FaultKind(("trainer", "watchdog"), "grace"),
    "corrupt": FaultKind(("logdir",), "how"),  # the newest checkpoint
    "fill": FaultKind(("logdir",), "seconds"),  # writing fails with ENOSPC
    "drop": FaultKind(TRAINER_AND_SERVICES, "seconds"),  # messages to the target are lost
}
HOWS = ("flip", "truncate", "delete")
TARGETS = tuple(dict.fromkeys(target for kind in ACTIONS.values() for target in kind.targets))


def is_task(target: str) -> bool:
    """Whether `target` names a task that runs the user's program, such as trainer or worker.1."""
    try:
        return TaskId.parse(target).runs_program
    except ValueError:
        return False


def kind_of_target(target: str) -> str:
    """Return the word of TARGETS that covers `target`: `trainer` stands for every task."""
    return str(TRAINER) if is_task(target) else target


class PlannedFault(msgspec.Struct, frozen=True):
    """One line of a plan.

    It happens `at_step`, or `after_s` from the start of the launch, or repeatedly: `every_steps`,
    or `every_s`. The other three of these fields keep their defaults. With `is_random` the
    intervals are exponentially distributed around the mean `every_s`. It happens `times` times; 0
    means without end.
    """

    target: str  # a task, a service, watchdog or logdir
    action: Action
    number: float = 0.0  # the exit code, the seconds of stop, fill and drop, or the seconds of grace
    how: str = ""  # one of HOWS for the action corrupt; otherwise ""
    at_step: int = -1
    after_s: float = -1.0
    every_steps: int = 0
    every_s: float = 0.0
    is_random: bool = False
    times: int = 1

    @property
    def by_step(self) -> bool:
        """Whether the global step decides when it happens."""
        return self.at_step >= 0 or self.every_steps > 0

    @property
    def executor(self) -> TaskId:
        """The process that carries out the fault: the trainer or the watchdog."""
        is_own = self.target == str(TRAINER) and self.by_step and ACTIONS[self.action].at_boundary
        return TRAINER if is_own else WATCHDOG

    def is_spent(self, done: int) -> bool:
        """Whether it has happened as often as planned, if it has happened `done` times."""
        return 0 < self.times <= done

    def due_step(self, done: int) -> int:
        """The global step of the next time, if it has happened `done` times."""
        return self.at_step if self.at_step >= 0 else self.every_steps * (done + 1)

    def __str__(self) -> str:
        """Return the fault as written on the command line."""
        return " ".join(
            part for part in (self.action, self.target, self._argument(), self._when(), self._times()) if part
        )

    def _argument(self) -> str:
        match ACTIONS[self.action].argument:
            case "code":
                return f"with {self.number:.0f}"
            case "seconds":
                return f"for {_brief(self.number)}"
            case "grace":
                return f"with grace {_brief(self.number)}"
            case "how":
                return f"by {self.how}"
            case _:
                return ""

    def _when(self) -> str:
        if self.at_step >= 0:
            return f"at step {self.at_step}"
        if self.after_s >= 0:
            return f"after {_brief(self.after_s)}"
        if self.every_steps:
            return f"every {self.every_steps} steps"
        return f"{'at random ' if self.is_random else ''}every {_brief(self.every_s)}"

    def _times(self) -> str:
        repeats = self.every_steps > 0 or self.every_s > 0
        if self.times == 0:
            return "" if repeats else "always"
        if self.times == 1:
            return "once" if repeats else ""
        return f"{self.times} times"


def _brief(seconds: float) -> str:
    return f"{seconds:g}s"


def describe(fault: PlannedFault) -> str:
    """Describe what a fault does, without its time, for a table."""
    words = {"kill": "SIGKILL", "segfault": "SIGSEGV", "raise": "an exception", "exit": f"exit code {fault.number:.0f}"}
    spent = show_duration(fault.number)
    words |= {"stop": f"frozen for {spent}", "hang": "hangs", "preempt": f"preempted, {spent} of grace"}
    words |= {"corrupt": f"newest checkpoint: {fault.how}", "fill": f"disk full for {spent}"}
    words |= {"drop": f"deaf for {spent}"}
    return f"{fault.target}: {words[fault.action]}"


class Plan(msgspec.Struct, frozen=True):
    """Faults, and the seed of their random times."""

    faults: tuple[PlannedFault, ...] = ()
    seed: int = 0

    def encode(self) -> str:
        """Return the plan as text for `decode`; "" for a plan without faults."""
        return encode_json(self).decode() if self.faults else ""

    @staticmethod
    def decode(text: str) -> Plan:
        return decode_json(text.encode(), Plan) if text else Plan()


def aim_at_tasks(plan: Plan, tasks: Sequence[TaskId]) -> Plan:
    """Return the plan for a run with these tasks. A run with a single trainer passes no tasks.

    A fault for `trainer` goes to the task whose state is saved, which is the first of `tasks`.
    UserError if a fault names a task that the run does not have.
    """
    names = [str(task) for task in tasks] or [str(TRAINER)]
    faults = tuple(_aim(fault, names[0]) for fault in plan.faults)
    for fault in faults:
        if is_task(fault.target) and fault.target not in names:
            raise UserError(f"the fault '{fault}' is for {fault.target}; this run has {', '.join(names)}")
    return msgspec.structs.replace(plan, faults=faults)


def _aim(fault: PlannedFault, chief: str) -> PlannedFault:
    return msgspec.structs.replace(fault, target=chief) if fault.target == str(TRAINER) else fault


def count_done(plan: Plan, journal: Iterable[Line]) -> list[int]:
    """Count in the journal how often each fault has happened; the order is the plan's."""
    if not plan.faults:
        return []
    done = [0] * len(plan.faults)
    texts = {str(fault): number for number, fault in reversed(list(enumerate(plan.faults)))}
    for line in journal:
        if isinstance(line.entry, entries.Fault) and (number := texts.get(line.entry.fault)) is not None:
            done[number] += 1
    return done


def find_fault(journal: Iterable[Line], task: TaskId, incarnation: int, exit: Exit) -> str:
    """Return the journaled fault of this process that explains its `exit`; "" if there is none."""
    last = ""
    for line in journal:
        if isinstance(line.entry, entries.Fault) and (line.role, line.incarnation) == (str(task), incarnation):
            last = line.entry.fault
    action = last.partition(" ")[0]
    fits = {"kill": exit.signal == signal.SIGKILL, "segfault": exit.signal == signal.SIGSEGV, "exit": bool(exit.code)}
    return last if fits.get(action, False) else ""


def interval_s(plan: Plan, number: int, done: int) -> float:
    """Return the seconds from one occurrence of a repeated fault to the next.

    `number` is the fault's index in the plan, and `done` how often it has happened. The same seed
    gives the same value.
    """
    fault = plan.faults[number]
    if not fault.is_random:
        return fault.every_s
    return random.Random(f"{plan.seed}/{number}/{done}").expovariate(1.0 / fault.every_s)
