"""One run, from the taking of the logdir to the exit code.

Called by __main__.py, with the Start that `procsv launch` has made.  Everything that a run needs is made here and
handed to the reactor, so that a test can put something else in its place.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import shlex
import socket
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec
import psutil

from procsv import __version__
from procsv.base import exit_codes
from procsv.base.clock import Clock
from procsv.base.cluster import make_cluster
from procsv.base.errors import UserError
from procsv.base.identity import SUMMARY, WATCHDOG, TaskId
from procsv.base.journal import entries
from procsv.base.journal.entries import Entry
from procsv.base.journal.file import read_journal
from procsv.base.journal.line import Line
from procsv.base.outcome import NO_STEP
from procsv.base.placement import BeginAgain, Placement
from procsv.base.run.loaded import command_of, take_earlier
from procsv.base.run.paths import shorten_path
from procsv.base.run.saved_step import saved_step
from procsv.base.run.terms import withdraw_terms
from procsv.base.service_table import SERVICES
from procsv.base.system.disk import free_bytes
from procsv.base.system.processes import identify
from procsv.base.system.system_clock import SystemClock
from procsv.base.system.tree_mark import remove_mark
from procsv.base.units import show_size
from procsv.faults.plan import Plan
from procsv.ipc.messaging.curve_transport import RunKeys, derive_keys
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Waiter
from procsv.ipc.shm.heartbeat_file import RunHeartbeats
from procsv.report.time_ledger import take_accounts
from procsv.watchdog.core.actions import Quit
from procsv.watchdog.core.relaunch import Adopt, GoOn
from procsv.watchdog.core.reporting import wording
from procsv.watchdog.core.restarts.goodput import Earlier
from procsv.watchdog.core.run import Core
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.edge.acquire_run import Opened, Unwanted, make_lease, open_run, remove_run, wait_unless_stopped
from procsv.watchdog.edge.console import Console
from procsv.watchdog.edge.conversation import RunSockets
from procsv.watchdog.edge.environment import Environment, RemoteTaskTable
from procsv.watchdog.edge.event_hook import EventHook, Hook, concerns, describe
from procsv.watchdog.edge.event_loop import Reactor
from procsv.watchdog.edge.faults.injector import Injector
from procsv.watchdog.edge.metrics import MetricsPort
from procsv.watchdog.edge.observed.observed_program import ObservedProgram
from procsv.watchdog.edge.observed.warm_services import WarmServices
from procsv.watchdog.edge.post_mortem import PostMortem
from procsv.watchdog.edge.processes import Argv, Processes
from procsv.watchdog.edge.resources.adopted_logdir import AdoptedLogdir
from procsv.watchdog.edge.resources.ground import RunGround
from procsv.watchdog.edge.resources.held_logdir import HeldLogdir, wait_with_lease
from procsv.watchdog.edge.resources.held_ports import HeldPorts
from procsv.watchdog.edge.resources.machine import MachineMemory
from procsv.watchdog.edge.resources.service_manager import ServiceManager, without_manager
from procsv.watchdog.edge.run_before import RunBefore, RunIsComplete
from procsv.watchdog.edge.run_records import RunRecords
from procsv.watchdog.edge.signals import Signals
from procsv.watchdog.edge.standby_link import StandbyLink
from procsv.watchdog.edge.status import Facts
from procsv.watchdog.machines.forming import form, refuse_members
from procsv.watchdog.machines.mirror_restore import MirrorRestore


def run(
    start: Start,
    argv: Argv = Start.argv,
    environment: Mapping[str, str] | None = None,
    observed: ObservedProgram | None = None,
    warm: WarmServices | None = None,
    placement: Placement | None = None,
    secret: bytes = b"",
) -> int:
    """Runs the run; the exit code of `procsv launch`.  BeginAgain: a machine was lost, and another one has its place.

    `observed`: the trainer, where somebody else has started it.  `placement`: our own, where the run's other tasks are hosted by
    other launches.  `secret`: of all of these; empty: there is none.
    """
    clock, signals, ports = SystemClock(), Signals(start.settings.notice_signals), HeldPorts()
    console = Console(not start.settings.detach, has_status=not start.observes)  # else the program's own log says it
    keys = derive_keys(secret, placement.scheduler) if placement is not None and secret else None
    try:
        try:
            before = None if start.observes else RunBefore(start)
            start, opened, adopted = _open(start, clock, signals, console, observed, before)
        except UserError as error:
            if placement is not None:
                refuse_members(start, placement, keys, error, clock)
            raise
        start, remote, formed = _with_cluster(start, opened, placement, keys, clock, signals, console, ports)
        waiter, variables = Waiter(), os.environ if environment is None else environment
        # What is none of the program's must not pass for it, where we were started from its tree ourselves.
        variables = remove_mark(variables, start.paths.id)
        manager = ServiceManager({} if start.observes else variables)  # an observed program has its own word with it
        if not start.observes:
            variables = without_manager(variables)
        processes = Processes(start, clock, argv, variables, waiter, opened.heirs, observed, warm)
        program = before.program if before is not None else ""
        exit_code, spares = _run(
            start, program, opened, adopted, processes, clock, signals, console, manager, remote, formed
        )
    except RunIsComplete as nothing_to_do:
        console.say(str(nothing_to_do))
        ServiceManager(os.environ).tell_complete(str(nothing_to_do))
        return nothing_to_do.exit_code
    except UserError as error:
        if observed is not None:
            observed.refuse(error)
        else:
            console.say(str(error), is_bad=True)
        return error.exit_code
    finally:
        ports.close()
        console.finish()
        signals.close()
    if placement is not None and spares is not None:
        raise BeginAgain(placement.follow(placement.task, spares))
    return exit_code


def _open(
    start: Start,
    clock: Clock,
    signals: Signals,
    console: Console,
    observed: ObservedProgram | None,
    before: RunBefore | None,
) -> tuple[Start, Opened, AdoptedLogdir | None]:
    """Takes the run's directory, and the logdir that the run before has adopted, if the program may name one.

    UserError if another run has it, or the run that is there is not the one that is asked for; RunIsComplete.
    """

    def wait(seconds: float) -> None:
        if observed is not None and observed.wait(seconds):
            raise Unwanted("the program has ended")
        wait_unless_stopped(signals, seconds if observed is None else 0.0)

    what = f"{'python' if start.observes else 'procsv launch'} {shlex.join((start.target, *start.args))}"
    opened = open_run(
        start.paths,
        clock,
        start.settings.grace_s,
        wait,
        console.say,
        make_lease(start, what, clock.wall()),
        group_readable=start.settings.group_readable,
        judge=before.judge if before is not None else lambda run: None,
    )
    verdict = before.verdict if before is not None else GoOn()
    if isinstance(verdict, GoOn):
        start = msgspec.structs.replace(start, has_other_args=verdict.has_other_args)
        if verdict.text:
            console.say(verdict.text)
    if opened.adopted is None or not start.may_adopt(opened.adopted) or isinstance(verdict, Adopt):
        return start, opened, None
    adopted = AdoptedLogdir(opened.adopted, start.paths.logdir, opened.lease, clock)
    try:
        adopted.take(wait, console.say)
    except UserError:
        remove_run(start.paths, opened, keep_memory=True)
        raise
    opened.saved_step = saved_step(opened.adopted)
    return start.with_logdir(str(opened.adopted)), opened, adopted


def _with_cluster(
    start: Start,
    opened: Opened,
    placement: Placement | None,
    keys: RunKeys | None,
    clock: Clock,
    signals: Signals,
    console: Console,
    ports: HeldPorts,
) -> tuple[Start, RemoteTaskTable, list[Entry]]:
    """`start` with the addresses of its tasks, and the one whose state is saved; unchanged if it has a trainer alone.

    With it, the launches that host its other tasks, once all have come; and what is to stand in the journal of that.
    """
    tasks = start.settings.tasks
    if placement is not None:
        wait = wait_with_lease(start.paths, opened.lease, clock, partial(wait_unless_stopped, signals))
        mirrors = MirrorRestore(start, placement.task, opened.saved_step, clock, wait, console.say)
        try:
            return *form(start, placement, keys, clock, ports, wait, console.say, mirrors.take), mirrors.entries
        except UserError:
            remove_run(start.paths, opened, keep_memory=True)
            raise
    if not tasks:
        return start, RemoteTaskTable(), []
    return (
        msgspec.structs.replace(start, chief=tasks[0], cluster=make_cluster(ports.hold(tasks))),
        RemoteTaskTable(),
        [],
    )


def _knows_imports(start: Start) -> bool:
    """Whether a standby can be made before the first trainer, as an earlier launch has left its imports."""
    if start.observes or start.settings.standby != "warm":
        return False
    return take_earlier(start.paths, command_of(start.target, start.args))


def _run(
    start: Start,
    program: str,
    opened: Opened,
    adopted: AdoptedLogdir | None,
    processes: Processes,
    clock: Clock,
    signals: Signals,
    console: Console,
    manager: ServiceManager,
    remote: RemoteTaskTable,
    formed: list[Entry],
) -> tuple[int, tuple[TaskId, ...] | None]:
    """The exit code; and the launches that have no task then, where all of them begin again."""
    facts = Facts(start, identify(os.getpid()), clock.wall(), program)
    settings = _make_settings(start, opened, remote, clock)
    core = Core(settings, opened.first_incarnation, random.Random(start.run), clock.monotonic())
    held = HeldLogdir(start.paths, opened.lease, opened.heirs, clock, adopted, opened.places)
    remote.listen(processes.waiter)
    environment = _build_environment(start, opened, held, core, processes, clock, signals, console, manager, remote)
    reactor = Reactor(core, facts, environment)
    started = _describe_start(start, opened, settings, remote)
    for entry in (started, *formed, *_describe_takeover(opened)):
        environment.records.append(entry, WATCHDOG, 1)
    if not start.observes:
        told = Line(clock.wall(), str(WATCHDOG), 1, started)
        environment.event_hook.offer_event(told, clock.monotonic())
        if concerns(started):
            console.say(describe(told), is_bad=True)
        memory_step = environment.post_mortem.snapshot_step(start.chief)
        where, adopted_to = shorten_path(start.root or start.logdir), shorten_path(start.logdir) if start.root else ""
        for line in wording.greet(__version__, where, adopted_to, memory_step, opened.saved_step, opened.habit):
            console.say(line)
    left = reactor.run()
    # Where the program has deleted the logdir that its session had, no start will look for its memory.
    keeps_memory = left.keep_memory and not (bool(start.observes) and opened.heirs.is_deleted())
    kept = _say_what_is_kept(core, start, environment) if keeps_memory else ""
    spares = _leave(core, start, opened, held, reactor, environment, left, keeps_memory=keeps_memory)
    if spares is not None:
        console.say(wording.moves(core.chief.durable_step))
    elif not start.observes:
        _say_goodbye(core, left, console, start, opened.complete_step)
    elif left.exit_code not in (exit_codes.DONE, exit_codes.RESUMABLE) and not start.home and start.paths.home.is_dir():
        console.say(f"report of the crash: {start.paths.crashes}; journal: {start.paths.journal}")
    if kept:
        console.say(kept, is_bad=True)  # the last line
    return left.exit_code, spares


def _make_settings(start: Start, opened: Opened, remote: RemoteTaskTable, clock: Clock) -> Settings:
    """What the core decides by: as the launch was told, and as earlier ones have left it."""
    return Settings(
        start.settings,
        opened.step_s,
        opened.began_step,
        opened.saved_step,
        _read_earlier(start, opened, clock.wall()),
        knows_imports=_knows_imports(start),
        observes=start.observes > 0,
        tasks=start.settings.tasks or (start.chief,),
        hosts=remote.host_of,
        adopted=remote.adopted,
        host=remote.host,
        habit=opened.habit,
        services={SUMMARY: SERVICES[SUMMARY]} if start.home else SERVICES,
    )


def _describe_start(start: Start, opened: Opened, settings: Settings, remote: RemoteTaskTable) -> entries.RunStarted:
    return entries.RunStarted(
        run=start.run,
        pid=os.getpid(),
        target=start.target,
        args=start.args,
        logdir=start.logdir,
        first_incarnation=opened.first_incarnation,
        tasks=tuple(map(str, settings.tasks)) if len(settings.tasks) > 1 else (),
        hosts={str(task): settings.host_of(task) for task in settings.tasks} if settings.host else {},
        spare_hosts=remote.spare_hosts,
        options=start.settings.chosen,
        versions={"procsv": __version__, "python": platform.python_version()} | _tensorflow_version(),
        machine=f"{socket.gethostname()}: {os.cpu_count()} processors, {show_size(psutil.virtual_memory().total)}",
        seen_until=opened.seen_until,
        asked_at=start.asked_at or None,
    )


def _tensorflow_version() -> dict[str, str]:
    """By the name of what is installed: importing it, or its metadata, costs time and memory that a watchdog has no use for."""
    names = (path.name for place in sys.path for path in Path(place).glob("tensorflow-*.dist-info"))
    name = next(names, "")
    return {"tensorflow": name.split("-")[1].removesuffix(".dist")} if name else {}


def _describe_takeover(opened: Opened) -> list[Entry]:
    """From a machine that had not renewed its lease, if the logdir was taken so."""
    older = opened.taken_from
    if older is None:
        return []
    return [entries.LeaseTakenOver(host=older.place.host, pid=older.pid, run=older.run, since=older.since)]


def _say_what_is_kept(core: Core, start: Start, environment: Environment) -> str:
    """What is said of a state that is in memory alone, and stays there; "" if there is none."""
    step = environment.post_mortem.snapshot_step(core.chief.task)
    if step <= core.chief.durable_step:
        return ""
    logdir, free = start.paths.logdir, 0
    with contextlib.suppress(OSError):
        free = free_bytes(logdir)
    needed = environment.post_mortem.snapshot_bytes(core.chief.task)
    return wording.only_in_memory(step, needed, free, shorten_path(str(logdir)))


def _read_earlier(start: Start, opened: Opened, wall_s: float) -> Earlier:
    asked_s = max(0.0, wall_s - start.asked_at) if start.asked_at else 0.0  # our own start is part of the run, too
    account, _ = take_accounts(read_journal(start.paths.journal), opened.seen_until)
    if account is None:
        return Earlier(ran_s=asked_s)
    totals = account.totals
    return Earlier(totals["kept"], account.wall_s - totals["stopped"] + asked_s)


def _build_environment(
    start: Start,
    opened: Opened,
    held: HeldLogdir,
    core: Core,
    processes: Processes,
    clock: Clock,
    signals: Signals,
    console: Console,
    manager: ServiceManager,
    remote: RemoteTaskTable,
) -> Environment:
    """The machine, as the event loop uses it."""
    paths, waiter = start.paths, processes.waiter
    waiter.register(signals.fd)
    port = _open_metrics_port(start.settings.metrics_port, console)
    event_hook = EventHook(
        _hooks(start.settings),
        {"target": start.target, "host": socket.gethostname(), "logdir": start.logdir},
        paths.logs / "on-event.log",
        {**processes.environment, "PROCSV_LOGDIR": start.logdir, "PROCSV_RUN": start.run},
        lambda text: console.say(text, is_bad=True),
        start.settings.on_event_s,
    )
    processes.helpers = lambda: event_hook.pids
    sockets = RunSockets(start, clock, waiter)
    return Environment(
        clock=clock,
        processes=processes,
        standby=StandbyLink(processes),
        sockets=sockets,
        held=held,
        signals=signals,
        records=RunRecords(paths, clock, lambda text: console.say(text, is_bad=True), port),
        heartbeats=RunHeartbeats(paths),
        post_mortem=PostMortem(paths),
        resources=MachineMemory(),
        console=console,
        event_hook=event_hook,
        ground=RunGround(paths, opened.lock, core.services, sockets.server.is_in_place),
        manager=manager,
        make_injector=lambda reach: Injector(
            Plan.decode(start.settings.plan), paths, processes, remote, reach, clock.monotonic()
        ),
        remote=remote,
    )


def _hooks(settings: LaunchSettings) -> list[Hook]:
    """What is run at each event that concerns people."""
    argv, hooks = shlex.split(settings.on_event), list[Hook]()
    if argv:
        hooks.append(Hook(f"--on-event {argv[0]}", tuple(argv)))
    if settings.notify:
        hooks.append(Hook("--notify", (sys.executable, "-P", "-m", "procsv.cli.notify"), settings.notify))
    return hooks


def _open_metrics_port(address: str, console: Console) -> MetricsPort | None:
    """None without one; and where it is taken, which is no reason not to train."""
    try:
        return MetricsPort(address) if address else None
    except OSError as error:
        console.say(f"no metrics at {address}: {error.strerror}; they stand in procsv/metrics.prom", is_bad=True)
        return None


def _leave(
    core: Core,
    start: Start,
    opened: Opened,
    held: HeldLogdir,
    reactor: Reactor,
    environment: Environment,
    left: Quit,
    *,
    keeps_memory: bool,
) -> tuple[TaskId, ...] | None:
    """Nothing of the run stays but what is in the logdir.  Killed at any line: the next launch clears the rest.

    The launches that have no task then, where all of them begin again; None: they do not.
    """
    last = reactor.close()
    for task in core.tasks:
        environment.processes.clear_last_tree(task)
    environment.processes.close()
    spares = environment.remote.close(left.exit_code, left.moves)
    if start.is_spread:
        withdraw_terms(start.paths, start.run)
    environment.records.write_run(last, durable=True)
    environment.records.close()
    held.let_go()
    remove_run(start.paths, opened, keeps_memory)
    return spares


def _say_goodbye(core: Core, left: Quit, console: Console, start: Start, complete_step: int) -> None:
    task = core.chief
    match core.word:
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
            console.say(f"reports of the crashes: {shorten_path(str(start.paths.crashes))}")
