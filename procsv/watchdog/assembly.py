"""Assemble a run: the settings of its core, its first journal entries, and its environment.

Called by main.py once the launch holds the logdir and every task has a machine.
"""

from __future__ import annotations

import os
import platform
import shlex
import socket
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

from procsv import __version__
from procsv.base.identity import SUMMARY
from procsv.base.journal import entries
from procsv.base.journal.entries import Entry
from procsv.base.journal.file import read_journal
from procsv.base.run.loaded import command_of, take_earlier
from procsv.base.service_table import SERVICES
from procsv.base.system.tree_mark import remove_mark
from procsv.base.units import show_size
from procsv.faults.plan import Plan
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Waiter
from procsv.ipc.shm.heartbeat_file import RunHeartbeats
from procsv.report.time_ledger import take_accounts
from procsv.watchdog.core.restarts.goodput import Earlier
from procsv.watchdog.core.run import Core
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.edge.console import Console
from procsv.watchdog.edge.conversation import RunSockets
from procsv.watchdog.edge.environment import Environment
from procsv.watchdog.edge.event_hook import EventHook, Hook
from procsv.watchdog.edge.injector import Injector
from procsv.watchdog.edge.launch import Formed, Launch
from procsv.watchdog.edge.metrics import MetricsPort
from procsv.watchdog.edge.opening.held_logdir import HeldLogdir
from procsv.watchdog.edge.opening.open_run import OpenedRun
from procsv.watchdog.edge.opening.take_logdir import Taken
from procsv.watchdog.edge.resources.machine import MachineMemory
from procsv.watchdog.edge.resources.run_files import RunFiles
from procsv.watchdog.edge.resources.service_manager import ServiceManager, without_manager
from procsv.watchdog.edge.run_records import RunRecords
from procsv.watchdog.host.observed_program import ObservedProgram
from procsv.watchdog.host.post_mortem import PostMortem
from procsv.watchdog.host.processes import Argv, Processes
from procsv.watchdog.host.standby_link import StandbyLink
from procsv.watchdog.host.warm_services import WarmServices


class Parts(NamedTuple):
    """What a run is assembled from."""

    launch: Launch
    taken: Taken
    formed: Formed
    processes: Processes
    manager: ServiceManager


def make_parts(
    launch: Launch,
    taken: Taken,
    formed: Formed,
    argv: Argv,
    observed: ObservedProgram | None,
    warm: WarmServices | None,
) -> Parts:
    # If a program of this logdir started us, we have inherited its mark, which would make our services look like its own.
    start, variables = formed.start, remove_mark(os.environ, formed.start.paths.id)
    processes = Processes(
        start=start,
        clock=launch.clock,
        argv=argv,
        environment=variables if start.observes else without_manager(variables),
        waiter=Waiter(),
        heirs=taken.opened.heirs,
        observed=observed,
        warm=warm,
    )
    # An observed program reports to its service manager itself, so its watchdog must not.
    manager = ServiceManager({} if start.observes else variables)
    return Parts(launch.with_start(start), taken, formed, processes, manager)


# -- settings of the core --------------------------------------------------------------------------------------
def make_settings(parts: Parts) -> Settings:
    """Return the core's settings: the launch's options, and what earlier launches have recorded."""
    start, opened, remote = parts.launch.start, parts.taken.opened, parts.formed.remote
    settings = Settings(
        launch=start.settings,
        learned_step_s=opened.step_s,
        began_step=opened.began_step,
        saved_step=opened.saved_step,
        earlier=_read_earlier(start, opened, parts.launch.clock.wall()),
        knows_imports=_knows_imports(start),
        observes=start.observes > 0,
        tasks=start.settings.tasks or (start.chief,),
        habit=opened.habit,
        # A run that has its own home in another run's logdir has no Saver, and so no use for the checkpoint service.
        services={SUMMARY: SERVICES[SUMMARY]} if start.home else SERVICES,
    )
    if remote is None:
        return settings
    return msgspec.structs.replace(settings, hosts=remote.host_of, adopted=remote.adopted, host=remote.host)


def _read_earlier(start: Start, opened: OpenedRun, wall_s: float) -> Earlier:
    asked_s = max(0.0, wall_s - start.asked_at) if start.asked_at else 0.0  # include the watchdog's own start
    account, _ = take_accounts(read_journal(start.paths.journal), opened.seen_until)
    if account is None:
        return Earlier(ran_s=asked_s)
    totals = account.totals
    return Earlier(totals["kept"], account.wall_s - totals["stopped"] + asked_s)


def _knows_imports(start: Start) -> bool:
    """Whether a standby can be made before the first trainer, because an earlier launch recorded
    what the program imports.
    """
    if start.observes or start.settings.standby != "warm":
        return False
    return take_earlier(start.paths, command_of(start.target, start.args))


# -- the first lines of the journal ----------------------------------------------------------------------------
def list_first_entries(parts: Parts, settings: Settings) -> list[Entry]:
    """Return the run's first journal entries.

    These are its start, then each memory copy that a new coordinator fetched or could not fetch,
    then the takeover of the logdir from another machine.
    """
    start, opened, remote = parts.launch.start, parts.taken.opened, parts.formed.remote
    started = entries.RunStarted(
        run=start.run,
        pid=os.getpid(),
        target=start.target,
        args=start.args,
        logdir=start.logdir,
        first_incarnation=opened.first_incarnation,
        tasks=tuple(map(str, settings.tasks)) if len(settings.tasks) > 1 else (),
        hosts={str(task): settings.host_of(task) for task in settings.tasks} if settings.host else {},
        spare_hosts=remote.spare_hosts if remote is not None else (),
        options=start.settings.chosen,
        versions={"procsv": __version__, "python": platform.python_version()} | _tensorflow_version(),
        machine=f"{socket.gethostname()}: {os.cpu_count()} processors, {show_size(psutil.virtual_memory().total)}",
        seen_until=opened.seen_until,
        asked_at=start.asked_at or None,
    )
    return [started, *parts.formed.entries, *_describe_takeover(opened)]


def _tensorflow_version() -> dict[str, str]:
    """Find the version in the name of the installed package.

    Importing TensorFlow, or reading its metadata, would cost time and memory that a watchdog does
    not need.
    """
    names = (path.name for place in sys.path for path in Path(place).glob("tensorflow-*.dist-info"))
    name = next(names, "")
    return {"tensorflow": name.split("-")[1].removesuffix(".dist")} if name else {}


def _describe_takeover(opened: OpenedRun) -> list[Entry]:
    """Return the journal entry for a lease that we took over because another machine no longer
    renewed it; [] if there was none.
    """
    older = opened.taken_from
    if older is None:
        return []
    return [entries.LeaseTakenOver(host=older.place.host, pid=older.pid, run=older.run, since=older.since)]


# -- the environment -------------------------------------------------------------------------------------------
def assemble(parts: Parts, core: Core, held: HeldLogdir) -> Environment:
    """Make the environment in which the event loop runs."""
    launch = parts.launch
    start, clock, signals, console = launch.start, launch.clock, launch.signals, launch.console
    processes, remote = parts.processes, parts.formed.remote
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
        run_files=RunFiles(paths, parts.taken.opened.lock, core.services, sockets.server.is_in_place),
        manager=parts.manager,
        make_injector=lambda reach: Injector(
            Plan.decode(start.settings.plan), paths, processes, remote, reach, clock.monotonic()
        ),
        remote=remote,
    )


def _hooks(settings: LaunchSettings) -> list[Hook]:
    """Return the commands to run at each event that concerns people."""
    argv, hooks = shlex.split(settings.on_event), list[Hook]()
    if argv:
        hooks.append(Hook(f"--on-event {argv[0]}", tuple(argv)))
    if settings.notify:
        hooks.append(Hook("--notify", (sys.executable, "-P", "-m", "procsv.cli.notify"), settings.notify))
    return hooks


def _open_metrics_port(address: str, console: Console) -> MetricsPort | None:
    """Open the metrics port, if the launch asks for one. A port that is taken is reported, and does
    not stop the training.
    """
    try:
        return MetricsPort(address) if address else None
    except OSError as error:
        console.say(f"metrics are not served at {address}: {error.strerror}; procsv/metrics.prom has them", is_bad=True)
        return None
