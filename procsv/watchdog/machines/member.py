"""Run a launch as a member of a run on several machines, from its start to its exit code.

Called by main.py for each launch of such a run except the coordinator. A member has directories of
its own, named after the task that the scheduler gave it: two members may be on one machine, and all
see the same logdir.
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
from procsv.base.cluster import SPARE
from procsv.base.errors import UserError
from procsv.base.identity import CHECKPOINT, WATCHDOG
from procsv.base.placement import BeginAgain, Placement
from procsv.base.system.tree_mark import remove_mark
from procsv.ipc.messaging.curve_transport import derive_keys, own_host
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Server, Waiter
from procsv.ipc.shm.heartbeat_file import RunHeartbeats
from procsv.watchdog.edge.console import Console
from procsv.watchdog.edge.launch import Launch, make_launch
from procsv.watchdog.edge.opening.open_run import OpenedRun, open_run, remove_run
from procsv.watchdog.edge.opening.run_lock import OpenRequest
from procsv.watchdog.edge.resources.machine import count_processors
from procsv.watchdog.edge.resources.service_manager import without_manager
from procsv.watchdog.host.post_mortem import PostMortem
from procsv.watchdog.host.processes import Processes
from procsv.watchdog.machines.checkpoint_proxy import CheckpointProxy
from procsv.watchdog.machines.core.member import MemberCore
from procsv.watchdog.machines.core.memory_copy import affordable
from procsv.watchdog.machines.forming import say_where
from procsv.watchdog.machines.joining import Joined, Joining, Rejoining, describe_lock
from procsv.watchdog.machines.member_loop import MemberLoop
from procsv.watchdog.machines.memory_copy.files import MemoryCopyFiles, OfferedMemoryCopy
from procsv.watchdog.machines.memory_copy.keeper import MemoryCopyKeeper
from procsv.watchdog.machines.own_summary import OwnSummary


class _Member(NamedTuple):
    """The parts of this launch that stay the same when its coordinator changes."""

    launch: Launch  # its Start has this member's directories
    placement: Placement
    opened: OpenedRun  # holds these directories
    variables: Mapping[str, str]  # its task's environment
    files: MemoryCopyFiles


def run_member(start: Start, placement: Placement, secret: bytes = b"") -> int | BeginAgain:
    """Serve the run's coordinator until the run is over; return the coordinator's exit code.

    Return BeginAgain if this launch must restart to take part in the next run: the run has lost a
    machine, or its tasks cannot continue under the next coordinator. `secret`: shared by all
    launches, if not empty.
    """
    own = with_own_directories(start, placement)
    launch = make_launch(own, Console())
    variables = without_manager(remove_mark(remove_mark(os.environ, start.paths.id), own.paths.id))
    with contextlib.closing(launch):
        try:
            opened = open_run(_request(launch, placement))
            try:
                member = _Member(
                    launch=launch,
                    placement=placement,
                    opened=opened,
                    variables=variables,
                    files=find_copy_files(start, placement),
                )
                return _join_and_serve(member, start, secret)
            finally:
                remove_run(own.paths, opened, keep_memory=False)
        except UserError as error:
            launch.console.say(str(error), is_bad=error.exit_code != exit_codes.DONE)
            return error.exit_code


def _join_and_serve(member: _Member, start: Start, secret: bytes) -> int | BeginAgain:
    """Join the run and serve it. `start`: has the run's directories."""
    (launch, placement, opened, _, files), clock = member, member.launch.clock
    say_where(launch.console.say)
    address = launch.ports.hold_own(placement.task, own_host(), placement.addresses).get(placement.task, "")
    keys = derive_keys(secret, placement.scheduler) if secret else None
    files.remove_drafts()
    offered = OfferedMemoryCopy(files, clock)
    lock = describe_lock(opened.heirs, clock.wall())
    joining = Joining(start, placement, address, clock, keys, lambda: offered.offer, lock)
    try:
        joined = joining.join(launch.wait, launch.console.say)
        offered.close()
        return _serve(member, joined, joining)
    finally:
        offered.close()
        joining.close()
        joining.context.term()


def with_own_directories(start: Start, placement: Placement) -> Start:
    """Replace the directories in `start` with this member's: for records in the logdir, sockets and
    locks, and memory.
    """
    # Not the present task: the task's previous host may be cut off, and still use the directories named after the task.
    launch = str(placement.launch)
    name = hashlib.sha256(f"{start.run_dir}\n{launch}".encode()).hexdigest()[:16]
    home = start.paths.tasks / launch
    return msgspec.structs.replace(
        start,
        run_dir=str(Path(start.run_dir).parent / f"procsv-{os.getuid()}-{name}"),
        shm_dir=str(Path(start.shm_dir).parent / f"procsv-{os.getuid()}-{name}"),
        home=str(home),
        is_member=True,
    )


def find_copy_files(start: Start, placement: Placement) -> MemoryCopyFiles:
    """Return the memory copy files of this machine.

    Other machines reach them at the host that the cluster names for our task, if it names one. They
    need that for a pod, whose own host name they cannot resolve.
    """
    has_address = placement.addresses is not None and placement.task in placement.addresses
    is_named = has_address or placement.kind == "indexed-job"
    return MemoryCopyFiles(start, own_host(), placement.host if is_named else "")


def _request(launch: Launch, placement: Placement) -> OpenRequest:
    """Return the request for this member's directories. Their lease is not watched: if a launch on
    another machine had our place, the coordinator decides which of us has it.
    """
    what = f"procsv launch, {placement.task} of {launch.start.target}"
    return msgspec.structs.replace(launch.request(what, launch.wait), watches_lease=False)


def _serve(member: _Member, joined: Joined, joining: Joining) -> int | BeginAgain:
    """Serve this coordinator, and each one that follows it."""
    launch, task = member.launch, member.placement.task
    clock, console = launch.clock, launch.console
    start, waiter, host = _as_told(launch.start, joined), Waiter(), joined.term.hosts[0]
    processes = Processes(
        start=start,
        clock=clock,
        argv=Start.argv,
        environment=member.variables,
        waiter=waiter,
        heirs=member.opened.heirs,
    )
    heartbeats = RunHeartbeats(start.paths)
    say, bytes_per_s = partial(console.say, is_bad=True), affordable(count_processors())
    # The member's own sockets; the run's are on the coordinator's machine.
    control = Server(joining.context, start.paths.control_socket, Address(start.run, WATCHDOG, 1), clock)
    saving = Server(joining.context, start.paths.service_socket(CHECKPOINT), Address(start.run, CHECKPOINT, 1), clock)
    checkpoint_proxy = CheckpointProxy(saving, start, joined.host, clock, say)
    summary = OwnSummary(processes, heartbeats, console, clock)
    copy_keeper = MemoryCopyKeeper(member.files, joined.term.run, joined.host, clock, say, bytes_per_s)
    for thing in (launch.signals.fd, joined.client, control):
        waiter.register(thing)
    checkpoint_proxy.listen(waiter)
    copy_keeper.listen(waiter)
    joining.offer = copy_keeper.offer
    settings = start.settings
    core = MemberCore(
        grace_s=settings.grace_s,
        peer_timeout_s=settings.peer_timeout_s,
        coordinator_timeout_s=settings.coordinator_timeout_s,
        coordinator=host,
        heard_s=clock.monotonic(),
    )
    loop = MemberLoop(
        core=core,
        task=task,
        server=control,
        checkpoint_proxy=checkpoint_proxy,
        summary=summary,
        processes=processes,
        heartbeats=heartbeats,
        post_mortem=PostMortem(start.paths),
        signals=launch.signals,
        console=console,
        clock=clock,
        waiter=waiter,
        rejoining=Rejoining(joining, joined.term.run, waiter, clock),
        joined=joined,
        copy_keeper=copy_keeper,
    )
    what = "no task yet; " if task.role == SPARE else ""
    console.say(f"{task} on {own_host()}: {what}serves the coordinator on {host}")
    try:
        if task.role != SPARE:
            summary.start()
        return _run(loop, member.placement, console)
    finally:
        processes.kill_tree(task, loop.incarnation)
        summary.end()
        processes.close()
        heartbeats.close()
        control.close()
        checkpoint_proxy.close()
        copy_keeper.close(keeps=not loop.needs_no_copy)
        loop.close()


def _as_told(own: Start, joined: Joined) -> Start:
    """Return the coordinator's Start, with this member's directories."""
    run = msgspec.convert(json.loads(joined.welcome.start), Start)
    mine = {name: getattr(own, name) for name in ("run_dir", "shm_dir", "home", "is_member", "logdir")}
    return msgspec.structs.replace(run, **mine)


def _run(loop: MemberLoop, placement: Placement, console: Console) -> int | BeginAgain:
    exit_code = loop.run()
    if loop.moves_to is not None:
        task, spares = loop.moves_to
        console.say(f"{task} on {own_host()}: restarting, because a machine was lost")
        return BeginAgain(placement.follow(task, spares))
    return BeginAgain(placement.as_move()) if loop.begins_anew else exit_code
