"""A model of a program under procsv.Supervisor: it says what a real trainer says, in the same order, and computes a chain.

Its state is a number that each step replaces by a function of itself and the step, so a state tells whether it is the right
one for its step.  Link, delivery and event backlogs are the real code; session, capture and program are modelled as one
coroutine that waits for time or for news.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

from procsv.base.grace import FORCED_SHARE, TRAINER_SHARE
from procsv.base.identity import CHECKPOINT, SUMMARY, TRAINER, WATCHDOG, TaskId
from procsv.base.outcome import Exit, LastWords
from procsv.base.run.manifest import Reason
from procsv.ipc.messaging.endpoint import Address, Received
from procsv.ipc.messaging.messages import (
    Ack,
    Body,
    Durable,
    FirstStepDone,
    Hello,
    Loaded,
    Message,
    Restore,
    Restored,
    RestoreFrom,
    SaveFailed,
    Snapshot,
    Staged,
    StopTraining,
    Written,
)
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.ipc.shm.slot_state import SlotState
from procsv.training.runtime.event_streams import EventStreams
from tests.simulation.model import history
from tests.simulation.model.checkpoints import files_of
from tests.simulation.model.memory import SimArena, Slot, SlotIsGone
from tests.simulation.model.network import SimClient
from tests.simulation.model.processes import Process
from tests.simulation.model.program import ProgramError, advance

if TYPE_CHECKING:
    from tests.simulation.model.world import World

LINK_S = 0.2  # how often the real link looks around
STEP_READ_S = 0.5  # how old a step in the heartbeat may be
ANSWER_S_MAX, SLOT_WAIT_S_MAX, FINAL_SAVE_S_MAX, END_S_MAX = 600.0, 60.0, 600.0, 10.0
ROLES = (WATCHDOG, CHECKPOINT, SUMMARY)

# What the program waits for: seconds to pass, or news to come within so many seconds (it is told whether they came).
Wait = float | tuple[Callable[[], bool], float]
Doing = Generator[Wait, bool, None]


class Trainer(Process):
    def __init__(
        self,
        world: World,
        incarnation: int,
        run: str,
        grace_s: float,
        *,
        standby: Process | None = None,
        is_fork: bool = False,
    ) -> None:
        """`standby`: the process that it was before, its imports done; `is_fork`: of one, which waits on."""
        super().__init__(world, TRAINER, incarnation, standby.pid if standby is not None else 0)
        self._import_s = world.program.import_s if standby is None and not is_fork else 0.02
        self.frozen_until_s = standby.frozen_until_s if standby is not None else 0.0
        self.holds_lock = True
        self.run_id, self._grace_s = run, grace_s
        self.phase, self.words = Phase.IMPORT, LastWords()
        self.step, self.value = -1, 0
        self.is_ready = False
        self.hung_s: float | None = None  # since when the program makes no progress although it should
        self._read = (-1, world.clock.now_s)  # the step in the heartbeat, and when it was read
        self._runs = 0
        self._beat_s = 0.0
        self._doom: ProgramError | None = None
        self._stop_reason: Reason | None = None
        self._stop_s = 0.0
        self._answers: dict[int, Body] = {}
        self._asked: set[int] = set()
        self._durable_sequence = self._sequence = 0
        self._asked_for = (-1, 0)
        self._snapshot_s = 0.0
        self._pool: SimArena | None = None
        self._origin = ""
        self._streams = EventStreams(world.clock)
        self._streams.attach_to_run(world.memory.directory, str(incarnation))
        self._writer = ""
        me = Address(run, TRAINER, incarnation)
        self._clients = {
            task: SimClient(world.network, world.socket(task), me, world.clock, self.wake) for task in ROLES
        }
        self._program = self._main()
        self._wait: Wait = 0.0
        self._until_s = 0.0
        self._has_to_abort = False
        self._has_begun = self._is_started = self._is_reserved = False
        self._never: Path | None = None  # the slot that it restored from
        self._records = 0
        self.wake(0.05)

    # -- what others see -------------------------------------------------------------------------------------
    def beat(self) -> Heartbeat | None:
        """The heartbeat: written by the link's thread, which a frozen process does not run."""
        if not self._has_begun:
            return None
        if not self.is_frozen and not self.is_dead:
            self._beat_s = self.world.clock.now_s
        return Heartbeat(self.phase, self._read[0], self._runs, self._beat_s, 0.0)

    def doom(self, error: ProgramError) -> None:
        """The program raises this where it is."""
        self._doom = error
        self.wake()

    def hang(self) -> None:
        """The program makes no more progress; its link goes on."""
        self.hung_s = self.world.clock.now_s

    @property
    def is_stuck(self) -> bool:
        return self.hung_s is not None or super().is_stuck

    def hear_signal(self, number: int) -> None:
        if number == signal.SIGTERM:
            if not self.is_frozen:
                self._request_stop("preempt")
            else:
                self.world.clock.at(self.frozen_until_s, lambda: self._request_stop("preempt"))
        elif number == signal.SIGCONT:
            self.thaw()
            if self._has_to_abort:
                self._abort()
        elif number == signal.SIGABRT:
            self._abort()
        else:
            assert signal.SIGRTMIN <= number <= signal.SIGRTMAX, (
                f"signal {number} to a trainer"
            )  # its stacks are dumped

    def _abort(self) -> None:
        """SIGABRT reaches a stopped process when it goes on."""
        self._has_to_abort = True
        if not self.is_frozen:
            self.die(Exit(None, signal.SIGABRT), "watchdog")

    # -- one turn of the link --------------------------------------------------------------------------------
    def turn(self) -> None:
        now_s = self.world.clock.now_s
        self._has_begun = True
        if self.is_orphan:
            self._request_stop("preempt")
        for task, client in self._clients.items():
            self._greet(task, client)
            while (received := client.receive()) is not None:
                self._hear(client, received)
        self._advance(now_s)
        if self.is_dead:
            return
        for message in self._streams.messages(now_s):
            self._clients[SUMMARY].send(message)
        self._plan_next_turn(now_s)

    def _greet(self, task: TaskId, client: SimClient) -> None:
        if not client.tick():
            return
        client.send_reliable(Hello(self.pid))
        if task == CHECKPOINT and self._pool is not None:
            client.send_reliable(self.world.program.plan)
        if task == SUMMARY:
            self._streams.on_connected()
        client.tick()

    def _hear(self, client: SimClient, received: Received) -> None:
        if received.re in self._asked and client is self._clients[CHECKPOINT] and not isinstance(received.body, Ack):
            self._answers[received.re] = received.body
        match received.body:
            case Written() as written:
                self._streams.on_written(written)
            case StopTraining(_, reason, _):
                self._request_stop(reason)
            case Durable() as news:
                self._durable_sequence = max(self._durable_sequence, news.sequence)
                self.world.note(history.Acknowledged(news, TRAINER))
            case SaveFailed():
                pass
            case _:
                pass
        client.acknowledge(received)

    def _plan_next_turn(self, now_s: float) -> None:
        dues = [self._until_s] if self.hung_s is None else []
        for client in self._clients.values():
            due_s = client.peer.outbox.next_due_s()
            if due_s is not None and client.server is not None:
                dues.append(max(due_s, now_s + LINK_S))
        streams_s = self._streams.next_due_s(now_s)
        if streams_s is not None:
            dues.append(max(streams_s, now_s + LINK_S))
        if dues:
            self.wake(max(0.0, min(dues) - now_s))

    def _request_stop(self, reason: Reason) -> None:
        if self.is_dead:
            return
        if self._stop_reason is not None:
            self._stop_reason = reason if self._stop_reason == "preempt" else self._stop_reason
            return
        self._stop_reason, self._stop_s = reason, self.world.clock.now_s
        self.world.clock.after(self._grace_s * TRAINER_SHARE * FORCED_SHARE, self._force)
        self.wake()

    def _force(self) -> None:
        """os._exit, by a thread of its own."""
        if self.is_frozen:
            self.world.clock.at(self.frozen_until_s, self._force)
        else:
            self.die(Exit(75, None), "itself")

    # -- the program's thread --------------------------------------------------------------------------------
    def _advance(self, now_s: float) -> None:
        if self.hung_s is not None:
            return
        while not self.is_dead:
            if self._doom is not None:
                doom, self._doom = self._doom, None
                self._end(doom)
                return
            came = True
            if isinstance(self._wait, tuple):
                came = self._wait[0]()
                if not came and now_s < self._until_s:
                    return
            elif now_s < self._until_s:
                return
            try:
                self._wait = self._program.send(came) if self._is_started else next(self._program)
                self._is_started = True
            except StopIteration:
                self.die(Exit(0 if self._stop_reason is None else 75, None), "itself")
                return
            except ProgramError as error:
                self._end(error)
                return
            self._until_s = now_s + (self._wait[1] if isinstance(self._wait, tuple) else self._wait)

    def _end(self, error: ProgramError) -> None:
        """The program's error leaves it: its last words, and the process ends."""
        if error.type:
            permanent = error.permanent and self.step < 0
            self.words = LastWords(error.type, error.message, "Traceback\n", self.step, permanent)
        self.die(Exit(error.code, None) if error.signal is None else Exit(None, error.signal), "program")

    def _main(self) -> Doing:
        program = self.world.program
        yield self._import_s
        program.check_import(self.incarnation)
        self._pool = SimArena(
            self.world.memory, Address(self.run_id, TRAINER, self.incarnation), self.pid, program.plan
        )
        self._tell(CHECKPOINT, program.plan)
        self.phase = Phase.RESTORE
        yield from self._restore()
        self._writer = self._streams.open_stream("/logdir", "")
        self._add_record("start")
        self.phase = Phase.COMPILE
        if self._origin == "fresh":
            self._reserve()
            yield from self._take("start")
        yield from self._train()
        yield from self._leave()

    def _train(self) -> Doing:
        program, first_step = self.world.program, self.step
        while self.step < program.steps and self._stop_reason is None:
            yield program.step_s if self.is_ready else program.compile_s
            program.check_step(self.step + 1, self.incarnation)
            self.step, self.value = self.step + 1, advance(self.value, self.step + 1)
            self._runs += 1
            self._add_record("step")
            now_s = self.world.clock.now_s
            if not self.is_ready:
                self._become_ready(first_step, now_s)
            if now_s >= self._read[1] + STEP_READ_S:
                self._read = (self.step, now_s)
            if now_s >= self._snapshot_s:
                self._snapshot("")

    def _become_ready(self, first_step: int, now_s: float) -> None:
        self.is_ready, self.phase, self._read = True, Phase.STEP, (self.step, now_s)
        self.world.note(history.Ready(self.incarnation))
        origin = self.world.last_origin
        self._tell(WATCHDOG, FirstStepDone(first_step, origin[0], origin[1], self.step, now_s))  # type: ignore[arg-type]
        self._tell(WATCHDOG, Loaded())
        self._tell(WATCHDOG, Loaded())  # a real one says it at its first contact, too
        self._reserve()
        self._snapshot_s = now_s + self.world.program.snapshot_s

    def _leave(self) -> Doing:
        """The last save, the last records, and whatever is still to be said."""
        if self.step >= self.world.program.steps or self._stop_reason is not None:
            self.phase, self._read = Phase.SAVE, (self.step, self.world.clock.now_s)
            share_s = self._grace_s * TRAINER_SHARE
            limit_s = FINAL_SAVE_S_MAX
            if self._stop_reason is not None:
                limit_s = max(1.0, share_s - (self.world.clock.now_s - self._stop_s))
            if self._asked_for[0] != self._runs:
                yield from self._take(self._stop_reason or "final")
            while (yield (lambda: self._has_saved or self._has_lost), limit_s) and not self._has_saved:
                yield from self._take(self._stop_reason or "final")
        if self.step >= self.world.program.steps:
            self._add_record("stop")
        self.phase = Phase.STOP
        self._streams.close_stream(self._writer, 0.0)
        yield (lambda: not self._streams.unwritten(self._writer)), END_S_MAX
        unwritten = self._streams.unwritten(self._writer) + self._streams.dropped
        yield (lambda: not any(len(client.peer.outbox) for client in self._clients.values())), END_S_MAX
        if self.step >= self.world.program.steps:
            self.world.note(history.Finished(self.incarnation, self.step, self.value, unwritten))

    # -- restoring -------------------------------------------------------------------------------------------
    def _restore(self) -> Doing:
        for durable_only in (self.world.program.is_staging, True):
            answer = yield from self._ask(Restore(durable_only))
            assert isinstance(answer, RestoreFrom)
            if answer.error:
                self.world.note(history.Refused(self.incarnation, answer.error))
                raise ProgramError("UserError", answer.error, permanent=True)
            self._sequence = max(self._sequence, answer.sequence)
            if answer.source == "memory" and not (yield from self._map(Path(answer.path))):
                continue
            self._take_over(answer)
            yield self.world.program.restore_s
            self._tell(CHECKPOINT, Restored())
            return
        raise ProgramError("UserError", "the state in memory is gone, and was answered twice")

    def _map(self, path: Path) -> Generator[Wait, bool, bool]:
        """Maps a slot privately; False if it is no longer there."""
        slot = self.world.memory.slots.get(path)
        if slot is None or slot.info.state is not SlotState.READY:
            return False
        try:
            self.world.memory.read(slot.info)
        except SlotIsGone:
            return False
        slot.readers.append(self.pid)
        self.step, self.value = slot.info.step, slot.value
        yield 0.01
        slot.readers.remove(self.pid)
        return True

    def _take_over(self, answer: RestoreFrom) -> None:
        if answer.source == "fresh":
            self.step, self.value = 0, 0
        elif answer.source == "checkpoint":
            content = self.world.disk.files.get(files_of(answer.path)[0])
            if content is None or content.content[0] != "variables":
                raise ProgramError("NotFoundError", f"{answer.path} is not whole")
            self.step, self.value = content.content[1:]
        self._origin = answer.source
        self.world.last_origin = (answer.source, answer.path)
        where = Path(answer.path) if answer.source == "memory" else None
        self._never = where
        self.world.note(history.Restored(self.incarnation, answer.source, answer.path, self.step, self.value))

    def _ask(self, body: Message) -> Generator[Wait, bool, Body]:
        seq = self._tell(CHECKPOINT, body)
        self._asked.add(seq)
        if not (yield (lambda: seq in self._answers), ANSWER_S_MAX):
            raise ProgramError("UserError", "the checkpoint service did not say which state to start from")
        return self._answers.pop(seq)

    # -- snapshots -------------------------------------------------------------------------------------------
    def _reserve(self) -> None:
        if not self._is_reserved and not self.world.program.is_staging:
            self._is_reserved = True
            assert self._pool is not None
            self._pool.reserve(self.world.program.slots, self._never)

    def _snapshot(self, want: str) -> int | None:
        """Captures now, copies beside the next steps, publishes; the sequence, None if no slot is free."""
        step, value, sequence = self.step, self.value, self._sequence + 1
        if self.world.program.is_staging:
            self._sequence = sequence
            prefix = f"/shm/staged.{sequence}/model.ckpt-{step}"
            self.world.memory.staged[prefix] = (sequence, step, value)
            self._tell(CHECKPOINT, Staged(prefix, sequence, step, want))  # type: ignore[arg-type]
            self._snapshot_s = self.world.clock.now_s + self.world.program.snapshot_s
            return sequence
        assert self._pool is not None
        if self._has_lost:
            self._pool.reserve(self.world.program.slots, self._never)
        slot = self._pool.begin_snapshot()
        if slot is None:
            return None
        self._sequence = sequence
        self._snapshot_s = self.world.clock.now_s + self.world.program.snapshot_s
        self.world.clock.after(self.world.program.copy_s, lambda: self._publish(slot, sequence, step, value, want))
        return sequence

    def _publish(self, slot: Slot, sequence: int, step: int, value: int, want: str) -> None:
        if self.is_dead:
            return
        if self.is_frozen:
            again = lambda: self._publish(slot, sequence, step, value, want)  # noqa: E731
            self.world.clock.at(self.frozen_until_s, again)
            return
        assert self._pool is not None
        self._pool.publish(slot, sequence, step, value)
        self.world.note(history.Wrote(self.pid, self.incarnation))
        self._tell(CHECKPOINT, Snapshot(sequence, step, want))  # type: ignore[arg-type]
        self.wake()

    def _take(self, reason: Reason) -> Doing:
        """A snapshot now, for that reason; without one if no slot becomes free."""
        self._reserve()
        until_s = self.world.clock.now_s + SLOT_WAIT_S_MAX
        while (sequence := self._snapshot(reason)) is None:
            if self.world.clock.now_s >= until_s:
                return
            yield 0.1
        self._asked_for = (self._runs, sequence)

    @property
    def _has_saved(self) -> bool:
        return self._durable_sequence >= self._asked_for[1]

    @property
    def _has_lost(self) -> bool:
        return self._pool is not None and self._pool.has_lost()

    # -- small things ----------------------------------------------------------------------------------------
    def _tell(self, task: TaskId, body: Message) -> int:
        return self._clients[task].send_reliable(body)

    def _add_record(self, what: str) -> None:
        self._records += 1
        self._streams.add_event(self._writer, f"{self.incarnation}:{self._records}:{what}:{self.step}".encode())

    def let_go(self) -> None:
        for client in self._clients.values():
            client.close()
        self._streams.detach_from_run()
        self._program.close()
