"""One start of a drilled training: a launch, or one for each task as a scheduler starts them, until all have ended.

Used by runner.py.  The first launch is the one whose exit code says what follows; the others are ended with it, as
`srun --kill-on-bad-exit` does.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from procsv.base import exit_codes
from procsv.base.clock import Clock
from procsv.base.identity import TaskId
from procsv.base.system.processes import Adopted, Child
from procsv.base.system.template import Template
from procsv.drill.machines import Machines, Place

LOOK_S = 0.5
ASK_S = 1.0  # again and again: who is adrift takes a signal for its own only once it has missed the coordinator
END_S_MAX = 120.0  # for the others, once the first has ended; then they are killed
SAID_BYTES_MAX = 2000  # of a launch that was refused, for people
REFUSALS = frozenset({exit_codes.USAGE, exit_codes.GAVE_UP, exit_codes.LOGDIR_UNUSABLE})

HERE = Place("")

Look = Callable[[], None]


def run_launches(
    argv: Sequence[str],
    output: Path,
    template: Template | None,
    machines: Machines | None,
    clock: Clock,
    look: Look,
) -> int:
    """The exit code of the run, or of a launch that was refused; negative: its launch was killed by that signal.

    `output`: where what the launch prints is added; those of other tasks have files beside it.  `look` is called twice a second.
    """
    files, launches = [output], list[Child]()
    if machines is None:
        launches.append(_start(argv, os.environ, output, template))
    else:
        files += [output.with_name(f"{output.stem}.{task}{output.suffix}") for task in list(machines.places)[1:]]
        for task, file in zip(machines.places, files, strict=True):
            launches.append(_start_on(machines, task, argv, file, template))
    try:
        _wait_for_first(launches, look)
        _end_others(launches[1:], clock)
    except BaseException:
        for child in launches:
            child.signal(signal.SIGTERM)  # it saves and ends; a second Ctrl-C reaches it from the terminal
        for child in launches:
            _wait([child], None)
        raise
    finally:
        codes = [_code(child) for child in launches]
    refused = next((number for number, code in enumerate(codes) if code in REFUSALS), 0)
    if refused and codes[0] not in REFUSALS:
        with output.open("ab") as stream:  # where people look for why
            stream.write(files[refused].read_bytes()[-SAID_BYTES_MAX:])
    return codes[refused]


def _start_on(machines: Machines, task: TaskId, argv: Sequence[str], output: Path, template: Template | None) -> Child:
    return _start(argv, {**os.environ, **machines.environment(task)}, output, template, machines.places[task])


def _start(
    argv: Sequence[str],
    environment: Mapping[str, str],
    output: Path,
    template: Template | None,
    place: Place = HERE,
) -> Child:
    """In our own session: Ctrl-C is for all of us."""
    with output.open("ab") as stream, Path(os.devnull).open() as nothing:
        files = {0: nothing.fileno(), 1: stream.fileno(), 2: stream.fileno()}
        if template is not None and (
            pid := template.fork(argv, environment, files, attaches=True, network=place.network)
        ):
            return Child(Adopted(pid))
        command = [*place.launcher, *argv]
        return Child(subprocess.Popen(command, env=environment, stdin=nothing, stdout=stream, stderr=stream))


def _wait_for_first(launches: list[Child], look: Look) -> None:
    """Returns once the first has ended.  One that is refused ends all: they would wait for it."""
    first, is_refused = launches[0], False
    while not first.has_ended():
        _wait([child for child in launches if not child.has_ended()], LOOK_S)
        look()
        if not is_refused and any(_code(child) in REFUSALS for child in launches[1:] if child.has_ended()):
            is_refused = True
            first.signal(signal.SIGTERM)


def _end_others(others: list[Child], clock: Clock) -> None:
    until_s = clock.monotonic() + END_S_MAX
    while left := [child for child in others if not child.has_ended()]:
        is_late = clock.monotonic() >= until_s
        for child in left:
            if is_late:
                child.signal_tree(signal.SIGKILL)
            child.signal(signal.SIGKILL if is_late else signal.SIGTERM)
        _wait(left, ASK_S)


def _wait(children: list[Child], limit_s: float | None) -> None:
    """Until one of them has ended, or `limit_s` is over."""
    select.select([child.pidfd for child in children if child.exit is None], [], [], limit_s)


def _code(child: Child) -> int:
    ended = child.reap()
    return -ended.signal if ended.signal is not None else ended.code or 0
