"""Run a member's event loop, which runs the member's task on the coordinator's orders.

Made by member.py. Orders come in, and reports go out. The loop decides nothing about the task, not
even whether to restart it; core/member.py decides what a member does by itself.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

import msgspec

from procsv.base import exit_codes
from procsv.base.clock import Clock, first_due_s
from procsv.base.errors import UserError
from procsv.base.grace import TRAINER_SHARE
from procsv.base.identity import SUMMARY, TaskId
from procsv.base.journal import entries
from procsv.base.signals import Default, default_of, is_handled
from procsv.ipc.messaging import member_messages, messages, watchdog_messages
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.messages import decode_body, encode_body
from procsv.ipc.messaging.zmq_transport import Server, Waiter
from procsv.ipc.shm.heartbeat_file import RunHeartbeats
from procsv.watchdog.core import events
from procsv.watchdog.core.events import StopAsked
from procsv.watchdog.core.reporting import wording
from procsv.watchdog.edge.console import Console
from procsv.watchdog.edge.freezes import Freezes
from procsv.watchdog.edge.resources.machine import MachineMemory
from procsv.watchdog.edge.signals import Signals
from procsv.watchdog.host.local_host import LocalHost, Machine
from procsv.watchdog.host.post_mortem import PostMortem
from procsv.watchdog.host.processes import Processes
from procsv.watchdog.host.standby_link import StandbyLink
from procsv.watchdog.machines.checkpoint_proxy import CheckpointProxy
from procsv.watchdog.machines.core.member import Act, MemberCore, MemberEvent, MemberState
from procsv.watchdog.machines.core.membership import beat_interval_s
from procsv.watchdog.machines.joining import BegunAnew, Joined, Rejoining, is_copy_useless
from procsv.watchdog.machines.memory_copy.keeper import MemoryCopyKeeper, News
from procsv.watchdog.machines.own_summary import OwnSummary

TICK_S = 0.5  # the longest sleep
CLEAR_S = 0.02  # between two checks of a dead task's process tree, until it is gone
LOCK_S = 5.0  # between two checks whether our directory was replaced; if it was, we lock the new one
SLACK = 1.5  # we answer each beat of the coordinator; if none comes for so many intervals, we send ours unasked
WAIT_S_MIN = 0.005
HEARD_MAX = 1000  # messages per socket and turn


class MemberLoop:
    def __init__(
        self,
        core: MemberCore,
        task: TaskId,
        server: Server,
        checkpoint_proxy: CheckpointProxy,
        summary: OwnSummary,
        processes: Processes,
        heartbeats: RunHeartbeats,
        post_mortem: PostMortem,
        signals: Signals,
        console: Console,
        clock: Clock,
        waiter: Waiter,
        rejoining: Rejoining,
        joined: Joined,
        copy_keeper: MemoryCopyKeeper | None = None,
    ) -> None:
        """`copy_keeper`: keeps a copy of the chief's memory; None for a member without a copy."""
        # Journal notes about the memory copy. They wait until our task runs, because we send them in the task's name.
        self._copy_keeper, self._waiting_notes = copy_keeper, list[watchdog_messages.Note]()
        self._core, self._task, self._server, self._checkpoint_proxy, self._summary = (
            core,
            task,
            server,
            checkpoint_proxy,
            summary,
        )
        self._client, self._run_start = joined.client, joined.welcome.start
        self._processes = processes
        self._signals, self._console, self._clock, self._waiter = signals, console, clock, waiter
        self.incarnation = 0  # the newest attempt's number
        settings = processes.start.settings
        settings = msgspec.structs.replace(settings, standby="warm" if settings.standby == "warm" else "off")
        machine = Machine(clock, processes, StandbyLink(processes), heartbeats, post_mortem, MachineMemory())
        self._host = LocalHost(machine, (task,), settings, self._journal, console.say, self._send)
        self._rejoining, self._is_cut = rejoining, False  # is_cut: we ask a newer coordinator, and no longer hear ours
        # The last attempt that finished its first step, and the last one that trains in step with other tasks.
        self._ready_of = self._in_step_of = 0
        self._offered = 0  # the attempt that we reported to the next coordinator
        self._freezes = Freezes()  # from the coordinator's fault plan
        self._tick_s = self._beat_s = self._lock_s = clock.monotonic()
        self._beat_interval_s = beat_interval_s(core.peer_timeout_s)
        self.moves_to: tuple[TaskId, tuple[TaskId, ...]] | None = None  # our task, and the spares, in the next run
        self.begins_anew = False  # the next coordinator does not adopt our task, so this launch must restart
        # Whether to delete our copy of the chief's memory at the end, because the coordinator has ended the run, or
        # because the run continues without us. If the coordinator was lost, the next one may need the copy.
        self.needs_no_copy = False

    def run(self) -> int:
        """Serve until the run is over or lost; return the exit code."""
        while self._core.state is not MemberState.GONE:
            self._waiter.wait(self._pause_s())
            self.run_once()
        return self._core.exit_code

    def run_once(self) -> None:
        """Run one turn: handle all that has happened."""
        self._tell_all(self._host.poll())
        self._hear_coordinator()
        for came in self._signals.take_requests():
            asked = came if isinstance(came, StopAsked) else self._pass_on(came.number)
            if asked is None:
                continue
            self._core.why = self._core.why or asked.source
            self._do(
                self._core.handle(MemberEvent.STOP, self._clock.monotonic()), asked.source, asked.now, asked.is_notice
            )
        self._hear_task()
        if self._copy_keeper is not None:
            self._tell_of_copy(self._copy_keeper.poll_keeper())
        self._say_notes()
        now_s = self._clock.monotonic()
        self._do(self._core.check(now_s))
        if self._core.state is MemberState.ADRIFT:
            self._look_for_coordinator()
        self._tell_all(self._host.tick(is_awaited=False))  # we know of no start before the host has the order
        self._freezes.end_expired(now_s)
        if now_s >= self._tick_s:
            self._tick_s = now_s + TICK_S
            self._client.resend_due()
            self._server.resend_due()
            self._checkpoint_proxy.server.resend_due()
            self._summary.check(now_s)
            self._processes.reap_strays()
        if now_s >= self._lock_s:
            self._lock_s = now_s + LOCK_S
            self._processes.heirs.relock()
        if now_s >= self._beat_s:
            self._send_beat(now_s)
        if self._core.state is MemberState.LEAVING and not self._has_processes and not self._host.is_clearing:
            self._do(self._core.handle(MemberEvent.TASK_GONE, now_s))

    def _pause_s(self) -> float:
        dues = (
            self._tick_s,
            self._beat_s,
            self._core.late_s,
            self._freezes.next_due_s(),
            self._copy_keeper.due_s if self._copy_keeper is not None else None,
        )
        due_s = first_due_s(dues)
        assert due_s is not None, "it ticks"
        return max(WAIT_S_MIN, min(CLEAR_S if self._host.is_clearing else TICK_S, due_s - self._clock.monotonic()))

    # -- the coordinator -----------------------------------------------------------------------------------
    def _tell(self, body: Message) -> None:
        self._client.send_reliable(body)

    def _hear_coordinator(self) -> None:
        if self._is_cut:
            return
        if self._client.resend_due():
            self._send_beat(self._clock.monotonic())
        for _ in range(HEARD_MAX):
            if (received := self._client.receive()) is None:
                return
            self._do(self._core.handle(MemberEvent.HEARD, self._clock.monotonic()))
            self._heard(received)
            self._tell_all(self._host.answers())
            self._client.acknowledge(received)

    def _heard(self, received: Received) -> None:
        match received.body:
            case member_messages.StartTask(_, incarnation):
                self._start(incarnation)
            case member_messages.SignalTask(_, incarnation, number):
                self._host.signal(self._task, incarnation, number)
            case member_messages.FreezeTask(task, incarnation, seconds):
                if (running := self._processes.find(task, incarnation)) is not None:
                    self._freezes.freeze(running, self._clock.monotonic() + seconds)
            case member_messages.KillTask(_, incarnation):
                self._host.kill_tree(self._task, incarnation)
            case member_messages.ClearTask(_, incarnation):
                self._host.clear_tree(self._task, incarnation, has_ended=False)
            case member_messages.TellTask(task, incarnation, body) if incarnation == self.incarnation:
                self._host.send(task, decode_body(body))
            case member_messages.CoordinatorBeat():
                self._send_beat(self._clock.monotonic())  # at once, so that the coordinator wakes once for all members
            case member_messages.TellState(_, incarnation, body):
                self._checkpoint_proxy.pass_answer(incarnation, decode_body(body))
            case member_messages.KeepMirror(bytes_per_s) if self._copy_keeper is not None:
                self._copy_keeper.begin_copies(bytes_per_s)
            case member_messages.SnapshotOffered() as offered if self._copy_keeper is not None:
                self._tell_of_copy(self._copy_keeper.offered(offered))
            case member_messages.EndMember(exit_code):
                self.needs_no_copy = True
                self._do(self._core.told_end(exit_code, self._clock.monotonic()))
            case member_messages.MoveMember(task, spares):
                self.needs_no_copy = True
                self.moves_to = task, spares
                self._do(self._core.told_end(exit_codes.RESUMABLE, self._clock.monotonic()))
            case _:
                pass  # an Ack

    def _tell_of_copy(self, news: list[News]) -> None:
        for body in news:
            if isinstance(body, watchdog_messages.Note):
                self._waiting_notes.append(body)
            else:
                self._tell(body)

    def _say_notes(self) -> None:
        running = self._processes.running.get(self._task) if self._waiting_notes else None
        if running is not None:
            for note in self._waiting_notes:
                body, now_s = encode_body(note), self._clock.monotonic()
                self._tell(member_messages.TaskSaid(self._task, running.incarnation, body, now_s))
            self._waiting_notes.clear()

    # -- the next coordinator ------------------------------------------------------------------------------
    def _look_for_coordinator(self) -> None:
        try:
            joined = self._rejoining.find_coordinator(self._describe_task)
        except UserError as error:
            self.needs_no_copy = is_copy_useless(error)
            self._give_up(str(error), error.exit_code)
            return
        except BegunAnew as why:
            self.begins_anew = True
            self._give_up(
                f"the tasks of the previous coordinator cannot be adopted ({why}); {self._task} restarts",
                exit_codes.RESUMABLE,
            )
            return
        if self._rejoining.follower and not self._is_cut:
            self._is_cut = True
            self._waiter.remove(self._client)
            self._console.say(
                f"a new coordinator runs on {self._rejoining.follower}: asking it to continue with {self._task}"
            )
        if joined is not None:
            self._go_on_with(joined)

    def _give_up(self, why: str, exit_code: int) -> None:
        self._console.say(why, is_bad=True)
        self._rejoining.stop()
        self._do(self._core.told_end(exit_code, self._clock.monotonic()))

    def _describe_task(self) -> member_messages.Served | None:
        """Describe our task for the next coordinator, which decides whether to adopt it.

        None while an attempt is about to start, or while a dead attempt has processes left.
        """
        self._host.withdraw_starts("another coordinator decides")
        running = self._processes.running.get(self._task)
        if self._host.is_starting or (running is None and not self._processes.clear_tree(self._task)):
            return None
        self._offered = running.incarnation if running is not None else 0
        if running is None:
            return member_messages.Served(self._run_start, None)
        # If the previous coordinator has not received FirstStepDone, the task counts as not ready. `_go_on_with` sends
        # the message to the next coordinator, which then knows that the task is ready.
        number, open_news = running.incarnation, [news.body for news in self._open_news(running.incarnation)]
        is_reported = not any(isinstance(decode_body(body), watchdog_messages.FirstStepDone) for body in open_news)
        is_ready, in_step = self._ready_of == number and is_reported, self._in_step_of == number
        return member_messages.Served(
            self._run_start, member_messages.Running(number, running.child.pid, is_ready, in_step)
        )

    def _open_news(self, incarnation: int) -> list[member_messages.TaskSaid]:
        """Return the reports from that attempt that no coordinator has received."""
        bodies = self._client.peer.outbox.bodies
        return [
            body for body in bodies if isinstance(body, member_messages.TaskSaid) and body.incarnation == incarnation
        ]

    def _go_on_with(self, joined: Joined) -> None:
        """Serve `joined` from now on. Send it the reports about the offered attempt that its
        predecessor did not receive.
        """
        before, self._client, self._is_cut = self._client, joined.client, False
        self._run_start, self._checkpoint_proxy.host = joined.welcome.start, joined.host
        if self._copy_keeper is not None:
            self._copy_keeper.follow(joined.term.run, joined.host)
        self._send_beat(self._clock.monotonic())  # first: the old messages below would give a wrong clock offset
        for body in before.peer.outbox.bodies:
            if (
                isinstance(body, member_messages.TaskSaid | member_messages.TaskEnded)
                and body.incarnation == self._offered
            ):
                self._client.send_reliable(body)
        before.close(linger_ms=0)
        if (question := self._checkpoint_proxy.open_question) is not None:
            self._client.send_reliable(question)
        self._do(self._core.adopted(joined.term.hosts[0], self._clock.monotonic()))

    def close(self) -> None:
        self._rejoining.stop()
        self._client.close()

    def _pass_on(self, number: int) -> StopAsked | None:
        """Pass a signal on to the program if it handles it; otherwise return what it means to this
        launch.
        """
        beat, name = self._host.beats().get(self._task), signal.Signals(number).name
        is_passed_on = beat is not None and is_handled(beat.handles, number)
        if is_passed_on:
            self._host.signal(self._task, self.incarnation, number)
        elif default_of(number) is not Default.GO_ON:
            return StopAsked(name, default_of(number) is Default.STOP_NOW)
        self._console.say(wording.signal_came(name, is_passed_on=is_passed_on), is_bad=not is_passed_on)
        return None

    def _send(self, task: TaskId, body: Message) -> None:
        self._server.broadcast(body, task)

    # -- orders --------------------------------------------------------------------------------------------
    def _start(self, incarnation: int) -> None:
        if self._core.state is MemberState.LEAVING:  # TaskStarted with an error says why the attempt does not start
            self._client.send_reliable(member_messages.TaskStarted(self._task, incarnation, 0, "this launch ends"))
        else:
            self._host.start(self._task, incarnation, self._clock.monotonic())

    def _send_beat(self, now_s: float) -> None:
        self._beat_s = now_s + SLACK * self._beat_interval_s
        beat, is_stopped = self._host.beats().get(self._task), self._task in self._host.stopped()
        usage = dict(self._host.usage(self._task))
        self._client.send(member_messages.MemberBeat(now_s, self._task, beat, is_stopped, usage))

    # -- the task ------------------------------------------------------------------------------------------
    def _tell_all(self, news: Iterable[events.Event]) -> None:
        """Report to the coordinator what has happened to the processes of this machine.

        Handle two events here, and do not report them: the end of the summary service, and a start
        that is tried again.
        """
        for event in news:
            match event:
                case events.Started(task, incarnation, pid, how):
                    self.incarnation = incarnation
                    self._console.follow(self._processes.start.paths.log(task, incarnation))
                    self._tell(member_messages.TaskStarted(task, incarnation, pid))
                    if how is not None:
                        self._journal(how, task, incarnation)
                case events.NotStarted(task, incarnation, is_tried_again=True):
                    self._start(incarnation)
                    self._tell_all(self._host.answers())
                case events.NotStarted(task, incarnation, error):
                    self._tell(member_messages.TaskStarted(task, incarnation, 0, error))
                case events.Ended(task) if task == SUMMARY:
                    self._summary.ended(event)
                    self._tell_of_summary()
                case events.Ended():
                    self._task_ended(event)
                case events.TreeGone(task, incarnation):
                    self._tell(member_messages.TaskCleared(task, incarnation))

    def _task_ended(self, ended: events.Ended) -> None:
        self._server.forget(ended.task, ended.incarnation)
        self._checkpoint_proxy.forget_attempt(ended.task, ended.incarnation)
        news = member_messages.TaskEnded(
            task=ended.task,
            incarnation=ended.incarnation,
            exit=ended.exit,
            beat=ended.beat,
            words=ended.words,
            stacks=ended.stacks,
            oom=ended.oom,
            sent_s=self._clock.monotonic(),
        )
        self._tell(news)

    def _journal(self, entry: entries.Entry, task: TaskId, incarnation: int) -> None:
        """Report an entry about the standby to the coordinator, which cannot see our standby.

        Drop the other entries: the coordinator writes them itself, from our other reports.
        """
        if isinstance(entry, entries.Promoted | entries.StandbyReady):
            note = encode_body(watchdog_messages.Note(entry))
            self._tell(member_messages.TaskSaid(self._task, self.incarnation, note, self._clock.monotonic()))

    @property
    def _has_processes(self) -> bool:
        """Whether the task or a standby has a process."""
        return bool(self._processes.running.keys() - {SUMMARY})

    def _tell_of_summary(self) -> None:
        if (lost := self._summary.lost) is not None:
            self._server.broadcast(lost, self._task)

    def _hear_task(self) -> None:
        for news in self._checkpoint_proxy.poll_proxy():
            self._client.send_reliable(news)
        for _ in range(HEARD_MAX):
            if (received := self._server.receive()) is None:
                return
            match received.body:
                case watchdog_messages.AdoptLogdir(logdir):
                    start = self._processes.start
                    error = "" if logdir == start.logdir else f"the run's logdir is {start.logdir}"
                    self._server.send_reliable(received.who, watchdog_messages.LogdirAdopted(error), re=received.seq)
                case (
                    watchdog_messages.StopRun() | watchdog_messages.RestartTrainer() | watchdog_messages.StatusRequest()
                ):
                    self._server.acknowledge(received)  # ignored: commands connect to the coordinator (run.json)
                case body:
                    self._note(body, received.incarnation)
                    encoded, now_s = encode_body(body), self._clock.monotonic()
                    said = member_messages.TaskSaid(received.task, received.incarnation, encoded, now_s)
                    self._client.send_reliable(said)
                    self._server.acknowledge(received)

    def _note(self, body: Message, incarnation: int) -> None:
        """Do what a message from the task requires of this member, besides passing it on."""
        match body:
            case messages.Hello():
                self._tell_of_summary()
            case watchdog_messages.Loaded():
                self._host.imports_known(self._task, incarnation)
            case watchdog_messages.FirstStepDone():
                self._ready_of = incarnation
            case watchdog_messages.TrainsInStep():
                self._in_step_of = incarnation

    # -- what the core says --------------------------------------------------------------------------------
    def _do(self, acts: tuple[Act, ...], source: str = "", now: bool = False, is_notice: bool = False) -> None:
        # Carry out `acts`. `source`, `now` and `is_notice` describe the signal to report, as in StopAsked.
        if self._core.state is MemberState.LEAVING:
            self._host.withdraw_starts("this launch ends")
            self._host.end_starts()
            self._tell_all(self._host.answers())
        for act in acts:
            match act:
                case Act.SAY_ADRIFT:
                    limit = f"{self._core.coordinator_timeout_s:g} s"
                    text = f"the coordinator on {self._core.coordinator} is silent; {self._task} continues without it, for {limit} at most"
                    self._console.say(text, is_bad=True)
                case Act.SAY_BACK:
                    self._console.say(f"the coordinator on {self._core.coordinator} is back")
                case Act.SAY_ADOPTED:
                    self._console.say(f"{self._task} continues with the coordinator on {self._core.coordinator}")
                case Act.TELL_NOTICE:
                    self._client.send_reliable(member_messages.MemberNotice(source, now, is_notice))
                case Act.ASK_TO_END:
                    self._console.say(f"{self._core.why}: ending {self._task}", is_bad=True)
                    stop_s = self._processes.start.settings.grace_s * TRAINER_SHARE
                    self._host.send(self._task, watchdog_messages.StopTraining(stop_s, "final", True))
                    self._host.signal(self._task, self.incarnation, signal.SIGTERM)
                    self._host.signal(self._task, self.incarnation, signal.SIGCONT)
                case Act.KILL:
                    self._host.kill_tree(self._task, self.incarnation)
                case Act.LEAVE:
                    self._processes.clear_last_tree(self._task)
