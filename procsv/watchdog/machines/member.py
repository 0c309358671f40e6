"""A launch that is a member of a run on several machines, from its start to its exit code.

Called by `procsv launch` where a scheduler has placed it beside others, and another of them has the task whose state is saved.  It has
directories of its own, by the task: two members may be on one machine, and all see the same logdir.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from procsv.base import exit_codes
from procsv.base.clock import Clock
from procsv.base.cluster import SPARE
from procsv.base.errors import UserError
from procsv.base.identity import CHECKPOINT, WATCHDOG
from procsv.base.placement import BeginAgain, Placement
from procsv.base.system.system_clock import SystemClock
from procsv.base.system.tree_mark import remove_mark
from procsv.ipc.messaging.curve_transport import derive_keys, own_host
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Server, Waiter
from procsv.ipc.shm.heartbeat_file import RunHeartbeats
from procsv.watchdog.edge.acquire_run import Opened, make_lease, open_run, remove_run, wait_unless_stopped
from procsv.watchdog.edge.console import Console
from procsv.watchdog.edge.post_mortem import PostMortem
from procsv.watchdog.edge.processes import Processes
from procsv.watchdog.edge.resources.held_ports import HeldPorts
from procsv.watchdog.edge.resources.machine import count_processors
from procsv.watchdog.edge.resources.service_manager import without_manager
from procsv.watchdog.edge.signals import Signals
from procsv.watchdog.machines.core.member import MemberCore
from procsv.watchdog.machines.core.mirror import affordable
from procsv.watchdog.machines.forming import say_where
from procsv.watchdog.machines.joining import Joined, Joining, Rejoining, describe_lock
from procsv.watchdog.machines.member_loop import MemberLoop
from procsv.watchdog.machines.mirror import Mirror
from procsv.watchdog.machines.mirror_files import MirrorFiles, OfferedMirror
from procsv.watchdog.machines.own_summary import OwnSummary
from procsv.watchdog.machines.stand_in import StandIn


class _Launch(NamedTuple):
    """This launch, whoever its coordinator is."""

    own: Start  # with the directories of this member
    placement: Placement
    opened: Opened  # its directories, held
    clock: Clock
    signals: Signals
    console: Console
    variables: Mapping[str, str]  # of its task's environment
    files: MirrorFiles


def run_member(start: Start, placement: Placement, secret: bytes = b"") -> int:
    """Serves the run's coordinator until the run is over; the exit code, which is the coordinator's.

    `secret`: of all launches; empty: there is none.
    BeginAgain: the run has lost a machine, or does not go on after its coordinator was lost, and this launch is to begin again.
    """
    clock, signals, ports = SystemClock(), Signals(start.settings.notice_signals), HeldPorts()
    console = Console()
    own = with_own_directories(start, placement)
    variables = without_manager(remove_mark(remove_mark(os.environ, start.paths.id), own.paths.id))
    try:
        opened = _open(own, placement, clock, signals, console)
        with contextlib.ExitStack() as held:
            held.callback(remove_run, own.paths, opened, keep_memory=False)
            say_where(console.say)
            address = ports.hold_own(placement.task, own_host(), placement.addresses).get(placement.task, "")
            keys = derive_keys(secret, placement.scheduler) if secret else None
            files = mirror_files(start, placement)
            files.remove_drafts()
            offered = OfferedMirror(files, clock)
            lock = describe_lock(opened.heirs, clock.wall())
            joining = Joining(start, placement, address, clock, keys, lambda: offered.offer, lock)
            try:
                joined = joining.join(partial(wait_unless_stopped, signals), console.say)
                offered.close()
                launch = _Launch(own, placement, opened, clock, signals, console, variables, files)
                return _serve(launch, joined, joining)
            finally:
                offered.close()
                joining.close()
                joining.context.term()
    except UserError as error:
        console.say(str(error), is_bad=error.exit_code != exit_codes.DONE)
        return error.exit_code
    finally:
        ports.close()
        console.finish()
        signals.close()


def with_own_directories(start: Start, placement: Placement) -> Start:
    """`start` with the directories of this member: for its records in the logdir, for its sockets and locks, and for memory."""
    launch = str(placement.launch)  # whose task it has by now: who had that may only be cut off, and go on
    name = hashlib.sha256(f"{start.run_dir}\n{launch}".encode()).hexdigest()[:16]
    home = start.paths.tasks / launch
    return msgspec.structs.replace(
        start,
        run_dir=str(Path(start.run_dir).parent / f"procsv-{os.getuid()}-{name}"),
        shm_dir=str(Path(start.shm_dir).parent / f"procsv-{os.getuid()}-{name}"),
        home=str(home),
        is_member=True,
    )


def mirror_files(start: Start, placement: Placement) -> MirrorFiles:
    """Those of this machine, which others reach as they reach its task, if the cluster has an address of that: a pod's own name is known to no other."""
    has_address = placement.addresses is not None and placement.task in placement.addresses
    is_named = has_address or placement.kind == "indexed-job"
    return MirrorFiles(start, own_host(), placement.host if is_named else "")


def _open(own: Start, placement: Placement, clock: Clock, signals: Signals, console: Console) -> Opened:
    """Takes the directories of this member, once what an earlier one has left there has ended."""
    return open_run(
        own.paths,
        clock,
        own.settings.grace_s,
        partial(wait_unless_stopped, signals),
        console.say,
        make_lease(own, f"procsv launch, {placement.task} of {own.target}", clock.wall()),
        group_readable=own.settings.group_readable,
        is_member=True,
    )


def _serve(launch: _Launch, joined: Joined, joining: Joining) -> int:
    """Serves this coordinator, and whoever follows it; the exit code."""
    task, clock, console = launch.placement.task, launch.clock, launch.console
    start, waiter, host = _as_told(launch.own, joined), Waiter(), joined.term.hosts[0]
    processes = Processes(start, clock, Start.argv, launch.variables, waiter, launch.opened.heirs)
    heartbeats = RunHeartbeats(start.paths)
    say, bytes_per_s = partial(console.say, is_bad=True), affordable(count_processors())
    # Sockets of the member's own, where those of the run lie on the coordinator's machine.
    control = Server(joining.context, start.paths.control_socket, Address(start.run, WATCHDOG, 1), clock)
    saving = Server(joining.context, start.paths.service_socket(CHECKPOINT), Address(start.run, CHECKPOINT, 1), clock)
    stand_in = StandIn(saving, start, joined.host, clock, say)
    summary = OwnSummary(processes, heartbeats, console, clock)
    mirror = Mirror(launch.files, joined.term.run, joined.host, clock, say, bytes_per_s)
    for thing in (launch.signals.fd, joined.client, control):
        waiter.register(thing)
    stand_in.listen(waiter)
    mirror.listen(waiter)
    joining.offer = mirror.offer
    settings = start.settings
    core = MemberCore(
        settings.grace_s, settings.peer_timeout_s, settings.coordinator_timeout_s, host, clock.monotonic()
    )
    loop = MemberLoop(
        core,
        task,
        control,
        stand_in,
        summary,
        processes,
        heartbeats,
        PostMortem(start.paths),
        launch.signals,
        console,
        clock,
        waiter,
        Rejoining(joining, joined.term.run, waiter, clock),
        joined,
        mirror,
    )
    what = "no task yet; " if task.role == SPARE else ""
    console.say(f"{task} on {own_host()}: {what}serves the coordinator on {host}")
    try:
        if task.role != SPARE:
            summary.start()
        return _run(loop, launch.placement, console)
    finally:
        processes.kill_tree(task, loop.incarnation)
        summary.end()
        processes.close()
        heartbeats.close()
        control.close()
        stand_in.close()
        mirror.close(keeps=not loop.needs_no_mirror)
        loop.close()


def _as_told(own: Start, joined: Joined) -> Start:
    """What the coordinator's launch was started with, in the directories of this member."""
    run = msgspec.convert(json.loads(joined.welcome.start), Start)
    mine = {name: getattr(own, name) for name in ("run_dir", "shm_dir", "home", "is_member", "logdir")}
    return msgspec.structs.replace(run, **mine)


def _run(loop: MemberLoop, placement: Placement, console: Console) -> int:
    """The exit code, at the end of the run; BeginAgain where this launch has a part in the next one."""
    exit_code = loop.run()
    if loop.moves_to is not None:
        task, spares = loop.moves_to
        console.say(f"{task} on {own_host()}: begins again, as a machine is gone")
        raise BeginAgain(placement.follow(task, spares))
    if loop.begins_anew:
        raise BeginAgain(placement.as_move())
    return exit_code
