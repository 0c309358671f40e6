"""Drive the tasks on other machines for the coordinator's event loop: send orders, return events.

Used by event_loop.py, through environment.py. core/membership.py decides which members are lost,
for example because they have been silent too long. A spare also counts as lost once it reports that
its machine will end. This module sends no orders to a lost member. It reports the member's task as
dead and as cleared away, because nobody can check that any more.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from procsv.base import exit_codes
from procsv.base.clock import Clock
from procsv.base.cluster import SPARE
from procsv.base.errors import PeerError
from procsv.base.identity import TaskId
from procsv.ipc.messaging import member_messages
from procsv.ipc.messaging.curve_transport import TcpServer
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.messages import Body, decode_body, encode_body
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.watchdog_messages import FirstStepDone
from procsv.ipc.messaging.zmq_transport import Context, Waiter
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.watchdog.core import events
from procsv.watchdog.core.settings import AdoptedTask
from procsv.watchdog.edge.environment import NO_COPY, MemoryCopy, RemoteHost
from procsv.watchdog.machines.core.membership import (
    Claim,
    Member,
    Membership,
    beat_interval_s,
    member_lost,
    member_replaced,
    spare_lost,
)
from procsv.watchdog.machines.core.orders import Order, Orders
from procsv.watchdog.machines.memory_copy.relay import MemoryCopyRelay
from procsv.watchdog.machines.newcomers import Newcomers, as_member
from procsv.watchdog.machines.questions import Questions

HEARD_MAX = 1000  # messages per turn of the loop, so that everything else gets its turn
GATHER_S = 0.02  # the most that a message may be delayed to gather the beats of several members
END_S_MAX = 5.0  # for the members to hear how the run has ended
HEARD_LOOK_S = 0.05  # between two checks whether the members have received everything


def member_id(number: int) -> TaskId:
    """Return a member's id in messages."""
    return TaskId("member", number)


class RemoteTasks(RemoteHost):
    """The tasks on all members."""

    def __init__(
        self,
        context: Context,
        server: TcpServer,
        membership: Membership,
        start: Start,
        clock: Clock,
        host: str = "",
        adopted: Mapping[TaskId, AdoptedTask] | None = None,
        copy_relay: MemoryCopyRelay | None = None,
    ) -> None:
        """`host`: this machine's name, for people. `adopted`: the tasks that already run.
        `copy_relay`: None if no member keeps a copy.
        """
        self.host, self.adopted = host, adopted or {}
        self._context, self._server, self._members, self._clock = context, server, membership, clock
        self._questions, self._copy_relay = Questions(context, start, clock), copy_relay
        self._newcomers = Newcomers(server, membership, start, clock)
        self._waiter: Waiter | None = None
        self._beat_s, self._beat_interval_s = 0.0, beat_interval_s(start.settings.peer_timeout_s)
        self._for_next_poll: list[events.Event] = []  # events that the next `poll` returns first
        # The attempts that members have orders to start, until the members answer. And the dead attempts whose leftover
        # processes members have orders to remove, until the members report the removal.
        self._starting, self._clearing = dict[TaskId, int](), dict[TaskId, int]()
        # The newest attempt of each task: the one that we ordered last, or adopted.
        self._newest = {task: one.incarnation for task, one in self.adopted.items()}
        self._orders: dict[int, Orders] = {}  # by member number

    def listen(self, waiter: Waiter) -> None:
        """Wake the event loop when a member sends something."""
        waiter.register(self._server)
        self._waiter = waiter
        self._questions.listen(waiter)
        if self._copy_relay is not None:
            self._copy_relay.listen(waiter)

    @property
    def host_of(self) -> dict[TaskId, str]:
        return {task: member.host for task, member in self._members.with_tasks.items()}

    @property
    def spare_hosts(self) -> tuple[str, ...]:
        return tuple(member.host for member in self._members.spares)

    # -- orders --------------------------------------------------------------------------------------------
    def hosts(self, task: TaskId) -> bool:
        """Whether `task` is on another machine."""
        return task in self._members.by_task

    def start(self, task: TaskId, incarnation: int, due_s: float) -> None:
        self._newest[task] = incarnation
        if self._order(task, member_messages.StartTask(task, incarnation)):
            self._starting[task] = incarnation
        else:
            self._for_next_poll.append(self._not_spawned(task, incarnation))

    def _not_spawned(self, task: TaskId, incarnation: int) -> events.NotStarted:
        return events.NotStarted(task, incarnation, f"{self._members.by_task[task].host} is lost")

    def signal(self, task: TaskId, incarnation: int, number: int) -> None:
        self._order(task, member_messages.SignalTask(task, incarnation, number))

    def kill_tree(self, task: TaskId, incarnation: int) -> None:
        self._order(task, member_messages.KillTask(task, incarnation))

    def clear_tree(self, task: TaskId, incarnation: int, has_ended: bool) -> None:
        if self._order(task, member_messages.ClearTask(task, incarnation)):
            self._clearing[task] = incarnation
        else:
            self._for_next_poll.append(events.TreeGone(task, incarnation))

    def send(self, task: TaskId, body: Message) -> None:
        self._order(task, member_messages.TellTask(task, self._newest.get(task, 0), encode_body(body)))

    def _order(self, task: TaskId, order: Order) -> bool:
        """Queue the order behind the open ones; False if the member is lost."""
        member = self._members.by_task[task]
        if member.takes_orders:
            self._orders.setdefault(member.number, Orders()).give(order)
            self._send_due(member.number)
        return member.takes_orders

    def _send_due(self, number: int) -> None:
        orders = self._orders[number]
        if (order := orders.due()) is not None and self._server.broadcast(order, member_id(number)):
            orders.sent()

    # -- faults of a plan ----------------------------------------------------------------------------------
    def freeze(self, task: TaskId, incarnation: int, seconds: float) -> None:
        self._order(task, member_messages.FreezeTask(task, incarnation, seconds))

    # -- news ----------------------------------------------------------------------------------------------
    def poll(self) -> list[events.Event]:
        """Return what has happened on the other machines since the last call."""
        heard, self._for_next_poll = self._for_next_poll, []
        for _ in range(HEARD_MAX):
            if (received := self._server.receive()) is None:
                break
            if isinstance(received.body, member_messages.AskTerm):
                self._newcomers.tell_term(received)
                continue
            if isinstance(received.body, member_messages.Join):
                heard += self._asked(received, received.body)
                continue
            member = self._members.find(received.task.index)
            if member is not None and member.takes_orders:
                self._members.heard(member, self._clock.monotonic())
                self._acknowledged(member.number, received.answers)
                heard += self._heard_from(member, received)
            self._server.acknowledge(received)
        for task, incarnation, answer in self._questions.poll_questions():
            self._order(task, member_messages.TellState(task, incarnation, encode_body(answer)))
        if self._copy_relay is not None:
            self._copy_relay.relay_answers()
        for member in self._members.newly_lost(self._clock.monotonic()):
            heard += self._lost(member)
        return heard

    def finds_only_beats(self, woken: list[object]) -> bool:
        """Whether the wake-up brought only members' beats. Other news is returned by the next
        `poll`.
        """
        if not woken or not all(thing is self._server for thing in woken):
            return False
        self._for_next_poll = self.poll()
        return not self._for_next_poll

    def gather_beats(self, limit_s: float) -> bool:
        """Wait a moment so that several members' beats are handled at once. False if something else
        has come.
        """
        if self._waiter is None:
            return True
        return not self._waiter.wait_for_others(self._server, min(GATHER_S, limit_s))

    def _acknowledged(self, number: int, order: Message | None) -> None:
        if order is not None and number in self._orders:
            self._orders[number].acknowledged(order)
            self._send_due(number)

    def _heard_from(self, member: Member, received: Received) -> list[events.Event]:
        now_s = self._clock.monotonic()
        match received.body:
            case member_messages.MemberBeat() as beat:
                member.clock.see(beat.sent_s, now_s)
                member.beat = member.put_on_our_clock(beat.beat)
                member.is_stopped, member.usage = beat.is_stopped, beat.usage
            case member_messages.TaskStarted(task, incarnation, pid, error):
                self._starting.pop(task, None)
                if error:
                    return [events.NotStarted(task, incarnation, f"{error} (on {member.host})")]
                return [events.Started(task, incarnation, pid)]
            case member_messages.TaskEnded() as ended:
                return [self._ended(member, ended, now_s)]
            case member_messages.TaskCleared(task, incarnation):
                self._clearing.pop(task, None)
                return [events.TreeGone(task, incarnation)]
            case member_messages.TaskSaid() as said:
                return self._said(member, said, now_s)
            case member_messages.AskState(task, incarnation, durable_only):
                self._questions.ask(task, incarnation, durable_only)
            case member_messages.AskSnapshot() | member_messages.MirrorKept() as news if self._copy_relay is not None:
                return self._copy_relay.told(member, news)
            case member_messages.MemberNotice() as notice:
                return self._noticed(member, notice)
            case _:
                pass  # an Ack
        return []

    def _noticed(self, member: Member, notice: member_messages.MemberNotice) -> list[events.Event]:
        """Handle a signal that the member's launch received: a preemption notice (`is_notice`), or
        another signal that asks for the end of the run.
        """
        source, spare = f"{notice.source} on {member.host}", ""
        if notice.is_notice and not notice.now:
            if member.is_leaving:
                return []  # already known
            member.is_leaving = True
            if member.task.role == SPARE:
                self._server.broadcast(member_messages.EndMember(exit_codes.RESUMABLE), member_id(member.number))
                member.is_lost = True  # expect nothing more from it
                return [spare_lost(member.task, member.host, 0.0)]
            hosts = self._members.next_hosts()
            spare = hosts[member.task].host if hosts is not None else ""
        return [events.StopAsked(source, notice.now, notice.is_notice, spare)]

    def _ended(self, member: Member, ended: member_messages.TaskEnded, now_s: float) -> events.Ended:
        member.clock.see(ended.sent_s, now_s)
        self._questions.withdraw_question(ended.task)
        if (orders := self._orders.get(member.number)) is not None:
            if (pointless := orders.attempt_died(ended.incarnation)) is not None:
                self._server.withdraw(pointless)
            self._send_due(member.number)
        beat, member.beat = member.put_on_our_clock(ended.beat), None
        return events.Ended(
            task=ended.task,
            incarnation=ended.incarnation,
            exit=ended.exit,
            beat=beat,
            words=ended.words,
            stacks=ended.stacks,
            oom=ended.oom,
        )

    def _said(self, member: Member, said: member_messages.TaskSaid, now_s: float) -> list[events.Event]:
        member.clock.see(said.sent_s, now_s)
        try:
            body: Body = decode_body(said.body)
        except PeerError as error:
            self._server.drop(str(error)[:60])
            return []
        if isinstance(body, FirstStepDone):
            body = msgspec.structs.replace(body, ended_s=member.clock.here(body.ended_s))
        return [events.Said(said.task, said.incarnation, body)]

    def _lost(self, member: Member) -> list[events.Event]:
        """Return the events that follow from the loss of `member`.

        If a launch waits for the lost member's place, that launch gets the place.
        """
        newcomer = self._newcomers.take_place(member)
        if newcomer is None:  # otherwise, the same id is the newcomer's
            self._server.forget(member_id(member.number), 2**31)  # a number above every incarnation
        self._forget(member)
        silent_s = self._clock.monotonic() - member.heard_s
        if member.task.role == SPARE:
            return [spare_lost(member.task, member.host, silent_s)]
        hosts = self._members.next_hosts()
        spare = hosts[member.task].host if hosts is not None else ""
        lost = member_lost(member.task, member.host, silent_s, spare, is_killed=member.is_dead)
        return self._with_open_orders(member.task, lost)

    def _asked(self, received: Received, join: member_messages.Join) -> list[events.Event]:
        """Handle a launch that asks for a place in this active run."""
        claim, member = self._newcomers.asks(received, join), self._members.find(received.task.index)
        if member is None or claim not in (Claim.AGAIN, Claim.SUCCEEDS):
            return []
        self._server.forget_others(received.who)
        self._newcomers.welcome(received)
        if claim is Claim.SUCCEEDS:
            return self._succeed(member, join)
        if (orders := self._orders.get(member.number)) is not None:
            orders.lost()  # the order under way was lost with the old connection: send it again
            self._send_due(member.number)
        return []

    def _succeed(self, dead: Member, join: member_messages.Join) -> list[events.Event]:
        """Give a killed launch's place to another launch. The task died with the killed one."""
        self._forget(dead)
        if self._copy_relay is not None:
            self._copy_relay.forget_member(dead)
        self._members.join(as_member(dead.number, join, self._clock.monotonic()))
        replaced = member_replaced(dead.task, join.host, dead.pid, join.pid)
        return self._with_open_orders(dead.task, replaced)

    def _forget(self, member: Member) -> None:
        self._orders.pop(member.number, None)
        self._questions.withdraw_question(member.task)

    def _with_open_orders(self, task: TaskId, news: events.Event) -> list[events.Event]:
        """Add to `news` the answers to the open orders, which the task's member can no longer give.

        These answers say that nothing was started, and that no process of the task is left.
        """
        what = [news]
        if (incarnation := self._starting.pop(task, None)) is not None:
            what.insert(0, self._not_spawned(task, incarnation))
        if (incarnation := self._clearing.pop(task, None)) is not None:
            what.append(events.TreeGone(task, incarnation))
        return what

    def keep_in_touch(self, now_s: float) -> None:
        """Resend the messages that members have not acknowledged.

        Once per beat interval, also send beats and the orders that are due, refuse launches whose
        place is taken, and check which member keeps the memory copy.
        """
        self._server.resend_due()
        if now_s < self._beat_s:
            return
        self._beat_s = now_s + self._beat_interval_s
        self._newcomers.refuse_doubles()
        if self._copy_relay is not None:
            self._copy_relay.order_keeper()
        for number in self._orders:
            self._send_due(number)
        self._server.send_to_each(self._there(), member_messages.CoordinatorBeat())

    def _there(self) -> list[bytes]:
        """Return the connections of the members that are not lost."""
        members = {
            who: self._members.find(peer.task.index)
            for who, peer in self._server.peers.items()
            if peer.task is not None
        }
        return [who for who, member in members.items() if member is not None and member.takes_orders]

    # -- state ---------------------------------------------------------------------------------------------
    def beats(self) -> dict[TaskId, Heartbeat]:
        return {task: m.beat for task, m in self._members.with_tasks.items() if m.beat is not None}

    def stopped(self) -> frozenset[TaskId]:
        return frozenset(task for task, m in self._members.with_tasks.items() if m.is_stopped and not m.is_lost)

    def usage(self, task: TaskId) -> Mapping[str, float | int]:
        return {"uptime": 0.0, "rss": 0, "cpu": 0.0, **self._members.by_task[task].usage}

    @property
    def memory_copy(self) -> MemoryCopy:
        """The copy of the chief's memory that a member keeps."""
        return self._copy_relay.kept if self._copy_relay is not None else NO_COPY

    @property
    def refused(self) -> int:
        """The number of messages that were invalid, and of strangers that were not let in."""
        return self._server.refused

    # -- the end -------------------------------------------------------------------------------------------
    def close(self, exit_code: int, restarts_elsewhere: bool = False) -> tuple[TaskId, ...] | None:
        """Tell all members how the run has ended, and wait a limited time for them to receive it.

        `restarts_elsewhere`: tell the members to restart, and return the launches that will then
        have no task. None if they do not restart: that was not asked for, or too few are left.
        """
        places = self._members.next_hosts() if restarts_elsewhere else None
        spares = tuple(name for name in places or () if name.role == SPARE)
        task_of = {member.number: task for task, member in (places or {}).items()}
        waiting = self._newcomers.refuse_all(exit_code) if places is None else []
        there = [member for member in self._members.by_task.values() if member.takes_orders]
        for member in there:
            task = task_of.get(member.number)  # None: the member's machine will end
            order = member_messages.EndMember(exit_code) if task is None else member_messages.MoveMember(task, spares)
            self._server.broadcast(order, member_id(member.number))
        self._end([member_id(number) for number in (*waiting, *(member.number for member in there))])
        return spares if places is not None else None

    def _end(self, there: list[TaskId]) -> None:
        wait_until_heard(self._server, there, self._clock, END_S_MAX)
        self._questions.close()
        if self._copy_relay is not None:
            self._copy_relay.close()
        self._server.close()
        self._context.term()


def wait_until_heard(server: TcpServer, members: list[TaskId], clock: Clock, limit_s: float) -> None:
    """Wait until `members` have acknowledged everything that they were sent, for at most `limit_s`.

    A coordinator does this at the end of a run, or after it has told the members that there will be
    no run. Messages that come in during the wait are dropped.
    """
    waiter, deadline_s = Waiter(), clock.monotonic() + limit_s
    waiter.register(server)
    while any(map(server.unacknowledged, members)) and clock.monotonic() < deadline_s:
        while (received := server.receive()) is not None:
            server.acknowledge(received)
        server.resend_due()
        waiter.wait(HEARD_LOOK_S)
