"""Form a run on several machines: publish our address, and wait for the other launches.

Used by coordinator.py once the coordinator's launch has the logdir, and before anything is started.
If an earlier coordinator of the run was lost, its members may still run their tasks, and offer
them.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
from collections.abc import Callable, Mapping

import msgspec

from procsv import __version__
from procsv.base import exit_codes
from procsv.base.clock import Clock
from procsv.base.cluster import PS, Cluster, make_cluster
from procsv.base.errors import UserError
from procsv.base.identity import COMMAND_LINE, WATCHDOG, TaskId
from procsv.base.placement import Placement
from procsv.base.run.terms import Term, forget_terms, lost_term, newest_term, write_term
from procsv.base.terminal import printable
from procsv.base.units import show_duration
from procsv.ipc.messaging.curve_transport import RunKeys, TcpServer, own_host, port_from_environment
from procsv.ipc.messaging.door import where_to_listen
from procsv.ipc.messaging.endpoint import Address, Received
from procsv.ipc.messaging.member_messages import (
    AskTerm,
    BeginAnew,
    Join,
    MirrorOffer,
    Refused,
    Served,
    TermTold,
    Welcome,
)
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Context, Waiter, new_context
from procsv.watchdog.core.settings import AdoptedTask
from procsv.watchdog.edge.resources.held_ports import HeldPorts
from procsv.watchdog.edge.resources.machine import count_processors
from procsv.watchdog.machines.core.adoption import Newcomer, NothingToAdopt, SurvivingTasks, adopt
from procsv.watchdog.machines.core.membership import Membership
from procsv.watchdog.machines.core.memory_copy import affordable
from procsv.watchdog.machines.memory_copy.relay import MemoryCopyRelay
from procsv.watchdog.machines.newcomers import as_member
from procsv.watchdog.machines.remote_tasks import RemoteTasks, member_id, wait_until_heard

LOOK_S = 0.2  # between two checks for a signal, while waiting for launches
# How often to look for a refusal that a second coordinator has published over our term. A member obeys a refusal only
# once it has stood for longer than this (REFUSAL_S in joining.py).
OUTLIVE_S = 0.5
SAID_AFTER_S = 5.0  # when to report which launches are missing
REPLACED = "a newer launch with the same task has joined the run and replaces this one"
REFUSED_S_MAX = 2.0  # how long to wait for members to receive a refusal
ASKED_S_MAX = 5.0  # if no file tells members of a refusal: how long to wait until they ask

Wait = Callable[[float], None]
Say = Callable[[str], None]


class Forming:
    """The coordinator's server while the run is formed."""

    def __init__(self, start: Start, placement: Placement, keys: RunKeys | None, clock: Clock) -> None:
        self._secret = keys.fingerprint if keys is not None else ""
        self._other_cluster = (
            ""  # tells the user that launches of another cluster do not join; "" if there is no sign of one
        )
        self._keys = keys or RunKeys.new()
        self._is_at_address = is_at_address(placement, keys)
        self.context = new_context()
        server = _listen(self.context, start, placement, self._keys, self._is_at_address, clock)
        self._expect(start, placement, server, clock, own_host())

    def _expect(self, start: Start, placement: Placement, server: TcpServer, clock: Clock, host: str) -> None:
        self._start, self._placement, self.server, self._clock, self._host = start, placement, server, clock, host
        others = tuple(task for task in placement.tasks if task != placement.task)
        self.membership = Membership(others + placement.spares, start.settings.peer_timeout_s)
        self._asked: dict[TaskId, Received] = {}  # the launches that wait for an answer, by task

    def publish(self) -> None:
        """Publish our address in the logdir, unless all launches know it. UserError if it cannot be
        written.
        """
        if self._is_at_address:
            return
        other = lost_term(self._start.paths, self._placement.scheduler)
        if other is not None and self._placement.kind == "tf-config":
            # Only a TF_CONFIG has the same identity at each start, so only here does another identity mean another
            # cluster.
            where = printable(next(iter(other.hosts), "another machine"))
            self._other_cluster = (
                f". The coordinator of another cluster, on {where}, was lost from this logdir: launches that have the TF_CONFIG "
                "of that cluster do not join this run. End them, and start all launches with one TF_CONFIG"
            )
        term = Term(
            scheduler=self._placement.scheduler,
            run=self._start.run,
            hosts=tuple(dict.fromkeys((self._host, socket.getfqdn()))),
            port=self.server.port,
            secret=self._secret,
        )
        if not self._secret:
            term = with_keys(term, self._keys)
        written = _write(self._start, term)
        forget_terms(self._start.paths, written.number)

    def gather(self, wait: Wait, say: Say) -> None:
        """Wait until there is a launch for each task and each spare. UserError if one does not come.

        `wait` raises if the run is no longer wanted.
        """
        waiter, began_s, is_said = Waiter(), self._clock.monotonic(), False
        waiter.register(self.server)
        outlive_s = began_s
        limit_s = self._start.settings.coordinator_timeout_s
        while self.membership.missing:
            waiter.wait(LOOK_S)
            wait(0.0)
            while (received := self.server.receive()) is not None:
                self._hear(received)
            self.server.resend_due()
            if self._clock.monotonic() >= outlive_s:
                outlive_s = self._clock.monotonic() + OUTLIVE_S
                self._outlive_refusal()
            waited_s = self._clock.monotonic() - began_s
            missing = ", ".join(map(str, self.membership.missing))
            if waited_s > limit_s:
                raise UserError(
                    f"no launch has joined for {missing} within {show_duration(limit_s)}: check that all of them were started, name the "
                    "same --logdir, and reach this machine (--coordinator-timeout sets how long to wait)"
                    + self._other_cluster,
                    exit_codes.RESUMABLE,
                )
            if waited_s > SAID_AFTER_S and missing and not is_said:
                is_said = True
                say(f"waiting for the launches of {missing}{self._other_cluster}")

    def _outlive_refusal(self) -> None:
        """Publish our term again if a refusal replaced it.

        The scheduler may start a second coordinator in the same start of the job. It finds the
        logdir taken by us and publishes a refusal for its members. These members are ours, too.
        """
        newest = newest_term(self._start.paths, self._placement.scheduler)
        if newest is not None and newest.refused:
            self.publish()

    def _hear(self, received: Received) -> None:
        join = received.body
        if isinstance(join, AskTerm):
            self.server.send_reliable(received.who, TermTold(self._start.run))
            return
        if not isinstance(join, Join):
            self.server.acknowledge(received)
            return
        ours, theirs = (__version__, _shown(self._line)), (join.version, _shown(join.line))
        if why := self.membership.why_refused(received.task.index, join.task, ours, theirs):
            # A launch that was lost or restarted comes too late if the run has continued without it. The user is not
            # to blame for that.
            has_moved = self._placement.has_moved or self.membership.is_taken_over(join.task)
            may_be_late = join.served is not None or has_moved
            is_late = may_be_late and self.membership.is_taken(received.task.index, join.task)
            code = exit_codes.RESUMABLE if is_late else exit_codes.USAGE
            self.server.send_reliable(received.who, Refused(why, code), re=received.seq)
            return
        now_s = self._clock.monotonic()
        self.membership.join(as_member(received.task.index, join, now_s))
        before, self._asked[join.task] = self._asked.get(join.task), received
        # Two launches of one rank: the scheduler may have lost sight of the first.
        if before is not None and before.who != received.who:
            self.server.send_reliable(before.who, Refused(REPLACED, exit_codes.RESUMABLE), re=before.seq)

    @property
    def _line(self) -> tuple[str, ...]:
        return (self._start.target, *self._start.args)

    # -- the previous run ----------------------------------------------------------------------------------
    @property
    def has_run_before(self) -> bool:
        """Whether a member has come that belongs to a run whose coordinator was lost."""
        return any(_served(received) is not None for received in self._asked.values())

    def adopt(self, ports: HeldPorts) -> SurvivingTasks:
        """Return the tasks that continue.

        Reserve the address at which these tasks look for our own task. NothingToAdopt if all tasks
        must restart.
        """
        newcomers = [self._newcomer(task, received) for task, received in self._asked.items()]
        survivors = adopt(newcomers, self._start.settings)
        task, host = self._placement.task, self._host
        address, told = survivors.address_of(task), (self._placement.addresses or {}).get(task)
        if address != told and address.rpartition(":")[0] != host:
            raise NothingToAdopt(f"{task} is at {told or host} now, but the others know it at {address}")
        try:
            ports.hold_own(task, host, {task: address})
        except UserError as error:
            raise NothingToAdopt(f"the others know {task} at {address}: {error}") from error
        return survivors

    def _newcomer(self, task: TaskId, received: Received) -> Newcomer:
        member, served = self.membership.by_task[task], _served(received)
        newcomer = Newcomer(task=task, host=member.host, address=member.address)
        if served is None:
            return newcomer
        before = msgspec.convert(json.loads(served.start), Start)
        return msgspec.structs.replace(
            newcomer, cluster=before.cluster, settings=before.settings, running=served.running
        )

    def begin_anew(self, why: str, say: Say) -> None:
        """Tell the members of the previous run that it does not continue. They end their tasks, and
        ask again.
        """
        say(f"the tasks of the previous coordinator cannot be adopted, so all restart: {why}")
        for task, received in list(self._asked.items()):
            if _served(received) is not None:
                self.server.send_reliable(received.who, BeginAnew(why), re=received.seq)
                self.membership.send_away(task)
                del self._asked[task]

    def wants_copy(self, survivors: SurvivingTasks | None) -> bool:
        """Whether a copy of the chief's memory is useful. It is not if parameter servers survive,
        because they have the newest variables.
        """
        return survivors is None or all(task.role != PS for task in self._placement.tasks)

    @property
    def copy_offers(self) -> list[tuple[TaskId, MirrorOffer]]:
        """The copies of a lost chief's memory that members have offered."""
        joins = [(task, received.body) for task, received in self._asked.items()]
        return [(task, join.mirror) for task, join in joins if isinstance(join, Join) and join.mirror is not None]

    # -- the end of forming --------------------------------------------------------------------------------
    def finish(self, ports: HeldPorts, survivors: SurvivingTasks | None) -> tuple[Start, RemoteTasks]:
        """Return the run's Start, and the tasks on its members."""
        start, adopted = self.welcome(ports, survivors)
        host = self._placement.host or self._host
        bytes_per_s = affordable(count_processors())
        copy_relay = MemoryCopyRelay(self.context, self.server, self.membership, start, self._clock, host, bytes_per_s)
        remote = RemoteTasks(
            context=self.context,
            server=self.server,
            membership=self.membership,
            start=start,
            clock=self._clock,
            host=host,
            adopted=adopted,
            copy_relay=copy_relay,
        )
        return start, remote

    def welcome(self, ports: HeldPorts, survivors: SurvivingTasks | None) -> tuple[Start, Mapping[TaskId, AdoptedTask]]:
        """Return the run's Start with all addresses, and the running tasks; tell the members, which
        then wait for orders.
        """
        if survivors is not None:
            cluster, adopted = survivors.cluster, survivors.tasks
        else:
            cluster, adopted = self._new_cluster(ports), {}
        start = msgspec.structs.replace(self._start, chief=self._placement.task, cluster=cluster, is_spread=True)
        now_s = self._clock.monotonic()
        for task, received in self._asked.items():
            self.server.send_reliable(received.who, Welcome(start.text()), re=received.seq)
            self.membership.heard(self.membership.by_task[task], now_s)
        return start, adopted

    def _new_cluster(self, ports: HeldPorts) -> Cluster:
        told = self._placement.addresses
        own = ports.hold_own(self._placement.task, self._host, told)
        if told is not None:
            return make_cluster(told)
        return make_cluster({m.task: m.address for m in self.membership.by_task.values() if m.address} | own)

    def refuse(self, error: UserError) -> None:
        """Tell the members that have come, and the ones still to come, that there is no run."""
        for received in self._asked.values():
            self.server.send_reliable(
                received.who, Refused(str(error), error.exit_code, has_run=False), re=received.seq
            )
        if self._is_at_address:
            refuse_askers(self.server, self._start, len(self.membership.missing), error, self._clock)
        else:
            _refuse_by_file(self._start, self._placement, error)
        told = [member_id(member.number) for member in self.membership.by_task.values()]
        wait_until_heard(self.server, told, self._clock, REFUSED_S_MAX)
        self.server.close()
        self.context.term()


def say_where(say: Say) -> None:
    """Tell the user if this launch cannot listen where PROCSV_HOST says."""
    if why := where_to_listen()[1]:
        say(why)


def is_at_address(placement: Placement, keys: RunKeys | None) -> bool:
    """Whether the launches find the coordinator at a host and port that all know, so that no file
    is needed.
    """
    return keys is not None and placement.coordinator is not None


def refuse_members(start: Start, placement: Placement, keys: RunKeys | None, error: UserError, clock: Clock) -> None:
    """Tell the members of this start that there is no run, and why.

    If the logdir cannot be written, or another run has the port, they wait in vain.
    """
    if keys is None or not is_at_address(placement, keys):
        _refuse_by_file(start, placement, error)
        return
    context = new_context()
    try:
        server = _listen(context, start, placement, keys, True, clock)
        refuse_askers(server, start, placement.ranks - 1, error, clock)
        server.close()
    except UserError:
        pass  # report the original error, not this one
    finally:
        context.term()


def refuse_askers(server: TcpServer, start: Start, expected: int, error: UserError, clock: Clock) -> None:
    """Tell up to `expected` members that ask for the run that there is none, for a limited time."""
    waiter, told, deadline_s = Waiter(), set[bytes](), clock.monotonic() + ASKED_S_MAX
    waiter.register(server)
    while len(told) < expected and clock.monotonic() < deadline_s:
        waiter.wait(LOOK_S)
        while (received := server.receive()) is not None:
            if isinstance(received.body, AskTerm):
                server.send_reliable(received.who, TermTold(start.run, str(error), error.exit_code))
                told.add(received.who)
    wait_until_heard(server, [COMMAND_LINE], clock, REFUSED_S_MAX)  # closing the connection loses unread messages


def _listen(
    context: Context, start: Start, placement: Placement, keys: RunKeys, is_told_address: bool, clock: Clock
) -> TcpServer:
    """Open the coordinator's server; UserError if the port is taken. `is_told_address`: listen at
    the port that all launches know.
    """
    at = placement.coordinator if is_told_address else None
    port = int(at.rpartition(":")[2]) if at is not None else port_from_environment()
    me = Address(start.run, WATCHDOG, start.incarnation)
    return TcpServer(context, port, keys.coordinator, keys.of_members(placement.ranks - 1), me, clock)


def _refuse_by_file(start: Start, placement: Placement, error: UserError) -> None:
    term = Term(scheduler=placement.scheduler, run=start.run, refused=str(error), exit_code=error.exit_code)
    with contextlib.suppress(OSError):  # report the original error, not this one
        write_term(start.paths, term)


def with_keys(term: Term, keys: RunKeys) -> Term:
    """Add to `term` the keys needed to speak to its coordinator."""
    return msgspec.structs.replace(term, server_key=keys.coordinator.public, client_secret=keys.members)


def _write(start: Start, term: Term) -> Term:
    try:
        return write_term(start.paths, term)
    except OSError as error:
        raise UserError(
            f"{start.paths.terms} cannot be written: {error.strerror or error}", exit_codes.LOGDIR_UNUSABLE
        ) from error


def _served(received: Received) -> Served | None:
    return received.body.served if isinstance(received.body, Join) else None


def _shown(line: tuple[str, ...]) -> str:
    return shlex.join(line)
