"""Take the logdir of a run, and also the logdir that the run has adopted from its program.

main.py calls this before anything is started. If an earlier run is recorded in the logdir,
core/relaunch.py decides whether this launch resumes that run.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import NamedTuple

import msgspec

from procsv.base import exit_codes
from procsv.base.errors import UserError
from procsv.base.outcome import NO_STEP
from procsv.base.run.loaded import changed_files, list_files, read_own
from procsv.base.run.paths import shorten_path
from procsv.base.run.run_file import RunFile, read_run
from procsv.base.run.saved_step import saved_step
from procsv.base.system.target import parse_target
from procsv.base.terminal import printable
from procsv.base.units import show_time
from procsv.ipc.messaging.start import Start
from procsv.watchdog.core.relaunch import Adopt, GoOn, NothingToDo, Refuse, RelaunchFacts, decide
from procsv.watchdog.edge.launch import Launch
from procsv.watchdog.edge.opening.held_logdir import AdoptedLogdir
from procsv.watchdog.edge.opening.open_run import OpenedRun, open_run, remove_run
from procsv.watchdog.edge.opening.run_lock import Wait

LOGDIR = "{logdir}"  # replaces the run's directory in arguments before they are compared


class Taken(NamedTuple):
    start: Start  # the launch's, with the adopted logdir, and with a flag if the previous run had other arguments
    opened: OpenedRun
    adopted: AdoptedLogdir | None  # where the run saves, if not in its own directory
    program: str  # as in run.json; "" for an observed program


def take_logdir(launch: Launch, wait: Wait) -> Taken:
    """Take the logdir. `wait` waits, and raises if the run is no longer wanted.

    UserError if another run has the logdir, or if this launch must not resume the run that is
    recorded there. RunIsComplete if that run has nothing left to do.
    """
    start = launch.start
    command = f"{'python' if start.observes else 'procsv launch'} {shlex.join((start.target, *start.args))}"
    request = launch.request(command, wait)
    if start.observes:
        return _take_adopted(launch, wait, open_run(request), GoOn(), "")
    before = RunBefore(start)
    opened = open_run(msgspec.structs.replace(request, judge=before.judge))
    return _take_adopted(launch, wait, opened, before.verdict, before.program)


def _take_adopted(launch: Launch, wait: Wait, opened: OpenedRun, verdict: GoOn | Adopt, program: str) -> Taken:
    """Take also the logdir that the previous run had adopted, if this launch may adopt it."""
    start, say = launch.start, launch.console.say
    if isinstance(verdict, GoOn):
        start = msgspec.structs.replace(start, has_other_args=verdict.has_other_args)
        if verdict.text:
            say(verdict.text)
    if opened.adopted is None or not start.may_adopt(opened.adopted) or isinstance(verdict, Adopt):
        return Taken(start, opened, None, program)
    adopted = AdoptedLogdir(opened.adopted, start.paths.logdir, opened.lease, launch.clock)
    try:
        adopted.take_logdir(wait, say)
    except UserError:
        remove_run(start.paths, opened, keep_memory=True)
        raise
    opened.saved_step = saved_step(opened.adopted)
    return Taken(start.with_logdir(str(opened.adopted)), opened, adopted, program)


# -- the existing run ------------------------------------------------------------------------------------------
class RunIsComplete(UserError):
    """The run was already complete, so this launch has nothing to do."""

    def __init__(self, text: str) -> None:
        super().__init__(text, exit_code=exit_codes.DONE)


class RunBefore:
    """Judges the previous run for the launch `start`."""

    def __init__(self, start: Start) -> None:
        self._start, self._target = start, parse_target(start.target, Path.cwd())
        self.verdict: GoOn | Adopt = GoOn()

    @property
    def program(self) -> str:
        """The target's file, as run.json names it."""
        return self._program_from(self._start.paths.logdir)

    def _program_from(self, root: Path) -> str:
        """Return the path of the target's file, relative to a run's own directory; "" for a module.

        Because it is relative, the file and the run may be moved together.
        """
        return os.path.relpath(os.path.realpath(self._target.path), root) if self._target.path else ""

    def judge(self, before: RunFile) -> None:
        """Raise if this launch must not resume the run `before`. Otherwise set `verdict`.

        RunIsComplete if that run has nothing left to do; otherwise a UserError that says what the
        user can do.
        """
        start = self._start
        loaded = read_own(before.paths.imports)
        is_known = bool(loaded.files) and loaded.attempt == before.incarnation
        changed = changed_files(loaded, self._target.home(Path.cwd())) if is_known else None
        saved, ended_s = saved_step(before.checkpoint_dir), before.ended_at
        is_trained = before.state == "done" and before.protected is True and before.durable_step != NO_STEP
        verdict = decide(
            RelaunchFacts(
                directory=shlex.quote(printable(shorten_path(before.logdir))),
                ran=_command_line(before.target, before.args),
                asked=_command_line(start.target, start.args),
                is_other=self._is_other(before),
                names_logdir=start.names_logdir,
                resumes=start.settings.resume,
                holds_results=before.state == "done"
                or max(before.step, before.durable_step, before.memory_step, saved) != NO_STEP,
                is_complete=is_trained and (not before.has_local_logdir or saved == before.durable_step),
                is_on_disk=before.has_local_logdir,
                at=f"{before.habit.unit} {before.step}",
                ended=show_time(ended_s) if ended_s is not None else "an unknown time",
                changed=changed,
                listed=list_files(changed or ()),
            )
        )
        match verdict:
            case Refuse(text):
                raise UserError(text)
            case NothingToDo(text):
                raise RunIsComplete(text)
            case _:
                self.verdict = verdict

    def _is_other(self, before: RunFile) -> bool:
        # Whether the launch has another program, or other arguments, than the run in the logdir.
        start, target = self._start, self._target
        ran = read_run(before.paths.run_json) or before  # as it was written: the run may have been moved since
        places = {before.root or before.logdir, ran.root or ran.logdir, start.logdir}
        if _without(places, before.args) != _without(places, start.args):
            return True
        if before.program and target.path and not start.names_logdir:
            return before.program != self._program_from(before.paths.logdir)
        # Compare only the names of the files: a job may bring its own copy of the program, and we do not know the path of
        # an observed program.
        return Path(before.target).name != Path(start.target).name


def _without(places: set[str], args: tuple[str, ...]) -> list[str]:
    """Return the arguments, with each of the run's directories in `places` replaced by LOGDIR."""
    found = list(args)
    for place in sorted(places, key=len, reverse=True):
        found = [arg.replace(place, LOGDIR) for arg in found]
    return found


def _command_line(target: str, args: tuple[str, ...]) -> str:
    return printable(shlex.join((target, *args)))
