"""Run one launch, from taking the logdir to the exit code.

Called with the Start that `procsv launch` has made. This module takes the logdir, forms the run,
has assembly.py make what the run needs, and hands that to the event loop. Tests can replace parts.
Code for runs on several machines (machines/) is imported only for such a run.
"""

from __future__ import annotations

import contextlib
import os
import random
from typing import NamedTuple

from procsv import __version__
from procsv.base import exit_codes
from procsv.base.errors import UserError
from procsv.base.identity import WATCHDOG, TaskId, attempt_name
from procsv.base.journal.line import Line
from procsv.base.outcome import NO_STEP
from procsv.base.placement import BeginAgain, Placement
from procsv.base.run.paths import shorten_path
from procsv.base.system.disk import free_bytes
from procsv.base.system.processes import identify
from procsv.ipc.messaging.start import Start
from procsv.watchdog.assembly import Parts, assemble, list_first_entries, make_parts, make_settings
from procsv.watchdog.core.actions import Quit
from procsv.watchdog.core.reporting import wording
from procsv.watchdog.core.run import Core
from procsv.watchdog.core.task.trainer import TrainerSupervisor
from procsv.watchdog.edge.console import Console
from procsv.watchdog.edge.event_hook import concerns, describe
from procsv.watchdog.edge.event_loop import Reactor
from procsv.watchdog.edge.launch import Formation, OneMachine, make_launch
from procsv.watchdog.edge.opening.held_logdir import HeldLogdir
from procsv.watchdog.edge.opening.open_run import OpenedRun, remove_run
from procsv.watchdog.edge.opening.take_logdir import RunIsComplete, take_logdir
from procsv.watchdog.edge.resources.service_manager import ServiceManager
from procsv.watchdog.edge.signals import StoppedBeforeStart, wait_unless_stopped
from procsv.watchdog.edge.status import Facts
from procsv.watchdog.host.observed_program import ObservedProgram
from procsv.watchdog.host.ports import PostMortemPort
from procsv.watchdog.host.processes import Argv
from procsv.watchdog.host.warm_services import WarmServices


class Result(NamedTuple):
    exit_code: int
    spares: tuple[TaskId, ...] | None = None  # if all launches restart: the ones without a task; otherwise None


def run(
    start: Start,
    argv: Argv = Start.argv,
    observed: ObservedProgram | None = None,
    warm: WarmServices | None = None,
) -> int:
    """Run the launch; return the exit code of `procsv launch`.

    `argv` makes the command line of a process to start. `observed`: the program, if procsv did not
    start it; then `warm` has an interpreter for each service.
    """
    return _run(start, OneMachine(), argv, observed, warm).exit_code


def run_placed(start: Start, placement: Placement, secret: bytes = b"") -> int | BeginAgain:
    """Run one launch of a run on several machines.

    Return its exit code, or BeginAgain if it must restart because a machine was lost.
    `placement`: this launch's own. `secret`: shared by all launches of the run, if not empty.
    """
    if not placement.coordinates:
        from procsv.watchdog.machines.member import run_member

        return run_member(start, placement, secret)
    from procsv.watchdog.machines.coordinator import Coordinator

    result = _run(start, Coordinator(placement, secret))
    if result.spares is None:
        return result.exit_code
    return BeginAgain(placement.follow(placement.task, result.spares))


def _run(
    start: Start,
    formation: Formation,
    argv: Argv = Start.argv,
    observed: ObservedProgram | None = None,
    warm: WarmServices | None = None,
) -> Result:
    console = Console(not start.settings.detach, has_status=not start.observes)  # an observed program has the terminal
    launch = make_launch(start, console)

    def wait(seconds: float) -> None:
        if observed is not None and observed.wait(seconds):
            raise StoppedBeforeStart("the program has ended")
        wait_unless_stopped(launch.signals, seconds if observed is None else 0.0)

    with contextlib.closing(launch):
        try:
            try:
                taken = take_logdir(launch, wait)
            except UserError as error:
                formation.refuse(launch, error)
                raise
            formed = formation.form(launch.with_start(taken.start), taken.opened)
            return _Run(make_parts(launch, taken, formed, argv, observed, warm), formation).run()
        except RunIsComplete as nothing_to_do:
            console.say(str(nothing_to_do))
            ServiceManager(os.environ).tell_complete(str(nothing_to_do))
            return Result(nothing_to_do.exit_code)
        except UserError as error:
            if observed is not None:
                observed.refuse(error)
            else:
                console.say(str(error), is_bad=True)
            return Result(error.exit_code)


class _Run:
    """A run whose logdir is taken and whose tasks have machines."""

    def __init__(self, parts: Parts, formation: Formation) -> None:
        launch, taken, opened = parts.launch, parts.taken, parts.taken.opened
        self._parts, self._formation, self._start, self._console = parts, formation, launch.start, launch.console
        facts = Facts(self._start, identify(os.getpid()), launch.clock.wall(), taken.program)
        settings = make_settings(parts)
        rng = random.Random(self._start.run)
        self._core = Core(settings, opened.first_incarnation, rng, launch.clock.monotonic())
        self._held = HeldLogdir(
            self._start.paths, opened.lease, opened.heirs, launch.clock, taken.adopted, opened.places
        )
        if parts.formed.remote is not None:
            parts.formed.remote.listen(parts.processes.waiter)
        self._environment = assemble(parts, self._core, self._held)
        self._reactor = Reactor(self._core, facts, self._environment)
        self._started, *others = list_first_entries(parts, settings)
        for entry in (self._started, *others):
            self._environment.records.append(entry, WATCHDOG, 1)

    def run(self) -> Result:
        """Run from the greeting to the last message."""
        start, core, opened = self._start, self._core, self._parts.taken.opened
        if not start.observes:
            self._tell_of_start()
            memory_step = self._environment.post_mortem.snapshot_step(start.chief)
            _greet(self._console, start, opened, memory_step)
        left = self._reactor.run()
        # If the program has deleted its session's logdir, no later start will look for its snapshots in memory.
        keeps_memory = left.keep_memory and not (bool(start.observes) and opened.heirs.is_deleted())
        kept = _describe_kept(core.chief, start, self._environment.post_mortem) if keeps_memory else ""
        spares = self._leave(left, keeps_memory=keeps_memory)
        if spares is not None:
            self._console.say(wording.restarts_elsewhere(core.chief.durable_step))
        elif not start.observes:
            _say_goodbye(self._console, core, start, opened.complete_step)
        elif (
            left.exit_code not in (exit_codes.DONE, exit_codes.RESUMABLE)
            and not start.home
            and start.paths.home.is_dir()
        ):
            self._console.say(f"report of the crash: {start.paths.crashes}; journal: {start.paths.journal}")
        if kept:
            self._console.say(kept, is_bad=True)  # last, so that the user sees it
        return Result(left.exit_code, spares)

    def _tell_of_start(self) -> None:
        """Pass the run's start to the commands of --on-event.

        If the previous watchdog was killed, tell the user, too.
        """
        clock = self._environment.clock
        started = Line(clock.wall(), str(WATCHDOG), 1, self._started)
        self._environment.event_hook.offer_event(started, clock.monotonic())
        if concerns(started.entry):
            self._console.say(describe(started), is_bad=True)

    def _leave(self, left: Quit, *, keeps_memory: bool) -> tuple[TaskId, ...] | None:
        """End the run: remove everything that it has outside the logdir.

        `keeps_memory`: leave the snapshots in shared memory for the next launch. If we are killed
        in here, the next launch removes the rest. If all launches restart, return the launches
        without a task; otherwise None.
        """
        environment = self._environment
        last = self._reactor.close()
        for task in self._core.tasks:
            environment.processes.clear_last_tree(task)
        environment.processes.close()
        remote = environment.remote
        spares = remote.close(left.exit_code, left.restarts_elsewhere) if remote is not None else None
        self._formation.withdraw(self._start)
        environment.records.write_run(last, durable=True)
        environment.records.close()
        self._held.let_go()
        remove_run(self._start.paths, self._parts.taken.opened, keeps_memory)
        return spares


# -- the first and last lines to the user -----------------------------------------------------------------------
def _greet(console: Console, start: Start, opened: OpenedRun, memory_step: int) -> None:
    where, adopted = shorten_path(start.root or start.logdir), shorten_path(start.logdir) if start.root else ""
    for line in wording.greet(__version__, where, adopted, memory_step, opened.saved_step, opened.habit):
        console.say(line)


def _describe_kept(chief: TrainerSupervisor, start: Start, post_mortem: PostMortemPort) -> str:
    """Describe the state that exists only in memory; "" if there is none."""
    step = post_mortem.snapshot_step(chief.task)
    if step <= chief.durable_step:
        return ""
    logdir, free = start.paths.logdir, 0
    with contextlib.suppress(OSError):
        free = free_bytes(logdir)
    return wording.only_in_memory(step, post_mortem.snapshot_bytes(chief.task), free, shorten_path(str(logdir)))


def _say_goodbye(console: Console, core: Core, start: Start, complete_step: int) -> None:
    """Print how the run ended.

    `complete_step`: the last step of the previous launch if that completed the training; otherwise
    NO_STEP.
    """
    task = core.chief
    match core.state_label:
        case "done":
            console.say(
                wording.ended(
                    task.step,
                    task.protection.has_session,
                    start.settings.drop_in,
                    task.progress.habit.unit,
                    was_complete=NO_STEP != task.step == complete_step,
                )
            )
        case "stopped":
            console.say(
                wording.stopped(
                    task.step,
                    task.durable_step,
                    deletes_logdir=task.deletes_logdir,
                    has_session=task.protection.has_session,
                    habit=task.progress.habit,
                )
            )
        case _:
            report = start.paths.crashes / f"{attempt_name(task.task, task.incarnation)}.txt"
            if report.is_file():
                console.say(f"what happened, in full: {shorten_path(str(report))}")
            else:
                console.say(f"reports of the crashes: {shorten_path(str(start.paths.crashes))}")
