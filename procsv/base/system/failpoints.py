"""Let a test make a process die, hang or see a bad disk at named points in our code (failpoints).

The environment variable PROCSV_FAILPOINTS uses the grammar of fail-rs:

    checkpoint.before_rename=1*kill;trainer.copy=3*off->kill

    name=[N*]action[(argument)][->…]   do the action N times (without N: always),
                                       then go on with the part after ->
    name@3=…                           only in incarnation 3 of a task, and in its children

Actions: off kill raise sleep await hang stop eio enospc enolck torn.  `await` waits until the file
named by its argument exists.  `torn` is returned to the caller, which then writes only half of its
data.  Without the variable, a failpoint costs one global look-up.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import threading

import msgspec

_TASK = re.compile(r"^(?:(\d+)\*)?([a-z]+)(?:\(([^)]*)\))?$")
_ACTIONS = frozenset(["off", "kill", "raise", "sleep", "await", "hang", "stop", "eio", "enospc", "enolck", "torn"])

LOOK_S = 0.02  # how often a waiting process checks for its file

DECLARED: set[str] = set()  # every name in the code; a test fails if one is never used


class FailpointRaised(Exception):
    """The exception of the action `raise`."""


class _Task(msgspec.Struct):
    left: int  # -1: no limit
    action: str
    argument: str


def parse(text: str) -> dict[str, list[_Task]]:
    """Parses a plan; ValueError names the part that is wrong."""
    plan: dict[str, list[_Task]] = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        name, equals, tasks = part.partition("=")
        if not equals:
            raise ValueError(f"PROCSV_FAILPOINTS: {part!r} has no '='")
        name, _, incarnation = name.partition("@")
        is_for_us = not incarnation or incarnation.strip() == os.environ.get("PROCSV_INCARNATION", "")
        for word in tasks.split("->"):
            match = _TASK.match(word.strip())
            if not match or match[2] not in _ACTIONS:
                raise ValueError(f"PROCSV_FAILPOINTS: {word!r} is not [N*]action; actions: {sorted(_ACTIONS)}")
            task = _Task(int(match[1] or -1), match[2], match[3] or "")
            if is_for_us:
                plan.setdefault(name.strip(), []).append(task)
    return plan


_plan = parse(os.environ.get("PROCSV_FAILPOINTS", ""))
_lock = threading.Lock()


def arm(text: str) -> None:
    """Adds a plan in the variable's grammar while the process runs.

    It replaces earlier plans of the same names.
    """
    plan = parse(text)
    with _lock:
        _plan.update(plan)


def read_again() -> None:
    """Reads the variable again, in a process that has become another incarnation."""
    plan = parse(os.environ.get("PROCSV_FAILPOINTS", ""))
    with _lock:
        _plan.clear()
        _plan.update(plan)


def disarm(name: str) -> None:
    with _lock:
        _plan.pop(name, None)


def declare(*names: str) -> None:
    """Declares names when the module that uses them is imported."""
    DECLARED.update(names)


def failpoint(name: str) -> bool:
    """Acts at the point `name` if a plan says so.

    Returns True if the caller must do only half its work (`torn`).
    """
    if not _plan or name not in _plan:
        return False
    with _lock:
        task = _next_task(_plan.get(name, []))
    return task is not None and _act(name, task)


def _next_task(tasks: list[_Task]) -> _Task | None:
    for task in tasks:
        if task.left == 0:
            continue
        task.left -= task.left > 0
        return task
    return None


def _act(name: str, task: _Task) -> bool:
    match task.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise FailpointRaised(f"{name}: {task.argument or 'failpoint'}")
        case "eio" | "enospc" | "enolck":
            number = getattr(errno, task.action.upper())
            raise OSError(number, os.strerror(number), name)
        case "stop":
            # Send it to this thread.  Another thread could take a signal to the process, and this one would run on.
            signal.raise_signal(signal.SIGSTOP)
        case "sleep":
            threading.Event().wait(float(task.argument or 1))
        case "await":
            while not os.path.exists(task.argument):  # noqa: PTH110  no import of pathlib for a failpoint
                threading.Event().wait(LOOK_S)
        case "hang":
            threading.Event().wait()
        case "torn":
            return True
    return False
