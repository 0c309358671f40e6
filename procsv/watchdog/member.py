"""A launch that is a member of a run on several machines, from its start to its exit code.

Called by `procsv launch` where a scheduler has placed it beside others, and another of them has the task whose state is saved.  It has
directories of its own, by the task: two members may be on one machine, and all see the same logdir.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from procsv.base.clock import Clock
from procsv.base.cluster import SPARE
from procsv.base.errors import UserError
from procsv.base.identity import CHECKPOINT, SUMMARY, WATCHDOG
from procsv.base.placement import BeginAgain, Move, Placement
from procsv.base.run.cleanup import remove_shm_files
from procsv.base.system.manager_variables import without_manager
from procsv.base.system.system_clock import SystemClock
from procsv.base.system.template import Template
from procsv.base.system.tree_mark import remove_mark
from procsv.ipc.messaging.derived_keys import derive_keys
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Server, Waiter
from procsv.watchdog.core.members.member import MemberCore
from procsv.watchdog.edge.acquire_run import Opened, make_lease, open_run, remove_run, wait_unless_stopped
from procsv.watchdog.edge.console import Console
from procsv.watchdog.edge.faults.own_machine import mend_left_cut
from procsv.watchdog.edge.heartbeats import RunHeartbeats
from procsv.watchdog.edge.members.joining import Joined, Joining
from procsv.watchdog.edge.members.member_loop import MemberLoop
from procsv.watchdog.edge.members.mirror import Mirror
from procsv.watchdog.edge.members.mirror_files import MirrorFiles
from procsv.watchdog.edge.members.mirror_offer import OfferedMirror
from procsv.watchdog.edge.members.own_host import own_host
from procsv.watchdog.edge.members.rejoining import Rejoining
from procsv.watchdog.edge.members.stand_in import StandIn
from procsv.watchdog.edge.members.summary_stand_in import SummaryStandIn
from procsv.watchdog.edge.post_mortem import PostMortem
from procsv.watchdog.edge.processes import Processes
from procsv.watchdog.edge.resources.held_ports import HeldPorts
from procsv.watchdog.edge.signals import Signals


def run_member(start: Start, placement: Placement, secret: bytes = b"") -> int:
    """Serves the run's coordinator until the run is over; the exit code, which is the coordinator's.

    `secret`: of all launches; empty: there is none.
    BeginAgain: the run has lost a machine, or does not go on after its coordinator was lost, and this launch is to begin again.
    """
    template = Template.take(os.environ)
    clock, signals, ports = SystemClock(), Signals(start.settings.notice_signals), HeldPorts()
    console = Console()
    own = with_own_directories(start, placement)
    variables = without_manager(remove_mark(remove_mark(os.environ, start.paths.mark), own.paths.mark))
    try:
        mend_left_cut(console.say)
        opened = _open(own, placement, clock, signals, console)
        remove_shm_files(own.paths)  # fetched for a task of a launch that was killed: nothing is here alone
        try:
            address = ports.hold_own(placement.task, own_host(), placement.addresses).get(placement.task, "")
            keys = derive_keys(secret, placement.scheduler) if secret else None
            files = MirrorFiles(start, own_host())
            files.remove_drafts()
            offered = OfferedMirror(files, clock)
            joining = Joining(start, placement, address, clock, keys, lambda: offered.offer)
            try:
                joined = joining.join(partial(wait_unless_stopped, signals), console.say)
                offered.close()
                return _serve(
                    own, placement, opened, joined, joining, clock, signals, console, variables, template, files
                )
            finally:
                offered.close()
                joining.close()
                joining.context.term()
        finally:
            remove_run(own.paths, opened, keep_memory=False)
    except UserError as error:
        console.say(str(error), is_bad=True)
        return error.exit_code
    except BeginAgain:
        if template is not None:
            template.hand_on(os.environ)
        raise
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
        shm_dir=str(Path(start.shm_dir).parent / f"procsv-{os.getuid()}-{name}-shm"),
        home=str(home),
        is_member=True,
    )


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
    )


def _serve(
    own: Start,
    placement: Placement,
    opened: Opened,
    joined: Joined,
    joining: Joining,
    clock: Clock,
    signals: Signals,
    console: Console,
    variables: Mapping[str, str],
    template: Template | None,
    files: MirrorFiles,
) -> int:
    run = msgspec.convert(json.loads(joined.welcome.start), Start)
    mine = {name: getattr(own, name) for name in ("run_dir", "shm_dir", "home", "is_member", "logdir")}
    start, waiter, context = msgspec.structs.replace(run, **mine), Waiter(), joining.context
    processes = Processes(start, clock, Start.argv, variables, waiter, opened.heirs, None, None, template, None)
    server = Server(context, start.paths.control_socket, Address(start.run, WATCHDOG, 1), clock)
    heartbeats = RunHeartbeats(start.paths)
    service = Server(context, start.paths.service_socket(CHECKPOINT), Address(start.run, CHECKPOINT, 1), clock)
    stand_in = StandIn(service, start, joined.host, clock, partial(console.say, is_bad=True))
    for thing in (signals.fd, server, joined.client):
        waiter.add(thing)
    stand_in.listen(waiter)
    mirror = Mirror(files, joined.term.run, joined.host, clock, partial(console.say, is_bad=True))
    mirror.listen(waiter)
    joining.offer = mirror.offer
    events = Server(context, start.paths.service_socket(SUMMARY), Address(start.run, SUMMARY, 1), clock)
    summaries = SummaryStandIn(events, placement.task, start.paths, clock)
    summaries.listen(waiter)
    settings, host = start.settings, joined.term.hosts[0]
    core = MemberCore(
        settings.grace_s, settings.peer_timeout_s, settings.coordinator_timeout_s, host, clock.monotonic()
    )
    loop = MemberLoop(
        core,
        placement.task,
        server,
        stand_in,
        summaries,
        processes,
        heartbeats,
        PostMortem(start.paths),
        signals,
        console,
        clock,
        waiter,
        Rejoining(joining, joined.term.run, waiter, clock),
        joined,
        mirror,
    )
    what = "no task yet; " if placement.task.role == SPARE else ""
    console.say(f"{placement.task} on {own_host()}: {what}serves the coordinator on {host}")
    try:
        return _run(loop, placement, console)
    finally:
        processes.kill_tree(placement.task, loop.incarnation)
        processes.close()
        heartbeats.close()
        server.close()
        stand_in.close()
        mirror.close(keeps=not loop.needs_no_mirror)
        if lost := summaries.what_is_lost():
            console.say(lost, is_bad=True)
        summaries.close()
        loop.close()


def _run(loop: MemberLoop, placement: Placement, console: Console) -> int:
    """The exit code, at the end of the run; BeginAgain where this launch has a part in the next one."""
    exit_code = loop.run()
    if loop.moves_to is not None:
        task, spares = loop.moves_to
        console.say(f"{task} on {own_host()}: begins again, as a machine is gone")
        raise BeginAgain(Move(placement.scheduler, task, spares))
    if loop.begins_anew:
        raise BeginAgain(placement.as_move())
    return exit_code
