"""A model of a program under procsv.Supervisor: it sends a real trainer's messages in the same
order and computes a chain.

Its state is a number that each step replaces by a function of itself and the step, so a state shows
whether it is right for its step. Event backlogs and the spacing of snapshots are real code;
session, capture and program are modelled.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from procsv.base.grace import TRAINER_SHARE
from procsv.base.identity import CHECKPOINT, SUMMARY, WATCHDOG, TaskId
from procsv.base.journal.entries import SnapshotFailed
from procsv.base.outcome import Source
from procsv.base.run.manifest import Reason
from procsv.ipc.messaging.checkpoint_messages import Durable, Restore, Restored, RestoreFrom, Snapshot, Staged
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.messages import Body
from procsv.ipc.messaging.summary_messages import Written
from procsv.ipc.messaging.watchdog_messages import CopyKept, FirstStepDone, Loaded, Note
from procsv.ipc.shm.heartbeat import Phase
from procsv.ipc.shm.slot_state import SlotState
from procsv.training.runtime.event_streams import EventStreams
from procsv.training.snapshots.cadence import Cadence
from tests.simulation.model import history
from tests.simulation.model.checkpoints import files_of
from tests.simulation.model.memory import SimArena, Slot, SlotIsGone
from tests.simulation.model.network import SimClient
from tests.simulation.model.program import ProgramError, advance
from tests.simulation.model.program_process import Doing, ProgramProcess, Wait

if TYPE_CHECKING:
    from tests.simulation.model.world import World

SLOT_WAIT_S_MAX, FINAL_SAVE_S_MAX, END_S_MAX = 60.0, 600.0, 10.0


class Trainer(ProgramProcess):
    """The trainer of a run with one task, or the chief of several."""

    peers: ClassVar[tuple[TaskId, ...]] = (WATCHDOG, CHECKPOINT, SUMMARY)

    def __init__(self, world: World, task: TaskId, incarnation: int, *args: Any, **origin: Any) -> None:
        super().__init__(world, task, incarnation, *args, **origin)
        self._durable_sequence = self._sequence = 0
        self._taken = -1  # the state count at the last capture
        self._asked_for = (-1, 0)
        self._snapshot_s = 0.0
        self._cadence = Cadence(world.program.snapshot_s)
        self._pool: SimArena | None = None
        self._origin: tuple[Source, str] = ("fresh", "")
        self._streams = EventStreams(world.clock)
        self._streams.attach_to_run(world.memory.directory, str(incarnation))
        self._writer = ""
        self._is_reserved = False
        self._never: Path | None = None  # the slot that it restored from
        self._records = 0

    # -- the link --------------------------------------------------------------------------------------------
    def _on_connected(self, peer: TaskId, client: SimClient) -> None:
        if peer == CHECKPOINT and self._pool is not None:
            client.send_reliable(self.world.program.plan)
        if peer == SUMMARY:
            self._streams.on_connected()

    def _on_heard(self, body: Body) -> None:
        match body:
            case Written() as written:
                self._streams.on_written(written)
            case Durable() as news:
                if news.sequence and news.is_of(self.run_id, self.incarnation):
                    self._durable_sequence = max(self._durable_sequence, news.sequence)
                    self.world.note(history.Counted(self.run_id, self.incarnation, news.sequence, news.path))
                self.world.note(history.Acknowledged(news, self.task))
            case CopyKept(sequence):
                self._cadence.copies.kept(sequence, self.world.clock.now_s)
            case _:
                pass

    def _send_news(self, now_s: float) -> None:
        for message in self._streams.messages(now_s):
            self._clients[SUMMARY].send(message)

    def _news_due_s(self, now_s: float) -> float | None:
        return self._streams.next_due_s(now_s)

    # -- the program -----------------------------------------------------------------------------------------
    def _main(self) -> Doing:
        program = self.world.program
        yield self._import_s
        program.check_import(self.incarnation)
        yield from self._find_others()
        self._pool = SimArena(
            self.world.memory, Address(self.run_id, self.task, self.incarnation), self.pid, program.plan
        )
        self._tell(CHECKPOINT, program.plan)
        self.phase = Phase.RESTORE
        yield from self._restore()
        self._writer = self._streams.open_stream("/logdir", "")
        self._add_record("start")
        self.phase = Phase.COMPILE
        if self._origin[0] == "fresh":
            self._reserve()
            yield from self._take("start")
        yield from self._train()
        yield from self._leave()

    def _find_others(self) -> Doing:
        """Wait for the others, if several tasks need each other."""
        yield from ()

    def _train(self) -> Doing:
        program, first_step = self.world.program, self.step
        while self.step < program.steps and self._stop_reason is None:
            yield program.step_s if self.is_ready else program.compile_s
            if not (yield from self._make_step()):
                return
            self._runs += 1
            self._add_record("step")
            now_s = self.world.clock.now_s
            if not self.is_ready:
                self._become_ready(first_step, now_s)
            self._read_step(now_s)
            if now_s >= self._snapshot_s:
                self._snapshot("")

    def _make_step(self) -> Generator[Wait, bool, bool]:
        """Train a step. Return False if there is no more to train."""
        yield from ()
        self.world.program.check_step(self.step + 1, self.incarnation)
        self.step, self.value = self.step + 1, advance(self.value, self.step + 1)
        return True

    @property
    def _state_count(self) -> int:
        """Return a number that rises with the state to save."""
        return self._runs

    def _read_state(self) -> bool:
        """Read the present step and value. Return whether that is possible."""
        return True

    def _become_ready(self, first_step: int, now_s: float) -> None:
        self.is_ready, self.phase, self._read = True, Phase.STEP, (self.step, now_s)
        self.world.note(history.Ready(self.task, self.incarnation))
        source, path = self._origin
        self._tell(WATCHDOG, FirstStepDone(first_step, source, path, self.step, now_s))
        self._tell(WATCHDOG, Loaded())
        self._tell(WATCHDOG, Loaded())  # a real trainer reports it at its first contact, too
        self._reserve()
        self._snapshot_s = now_s + self.world.program.snapshot_s

    def _leave(self) -> Doing:
        """Do the last save, write the last records and send the rest."""
        if self.step >= self.world.program.steps or self._stop_reason is not None:
            self.phase, self._read = Phase.SAVE, (self.step, self.world.clock.now_s)
            share_s = self._grace_s * TRAINER_SHARE
            limit_s = FINAL_SAVE_S_MAX
            if self._stop_reason is not None:
                limit_s = max(1.0, share_s - (self.world.clock.now_s - self._stop_s))
            wants_one = self._asked_for[0] != self._state_count
            if wants_one and not (yield from self._take(self._stop_reason or "final")):
                error = "no slot became free"
                self._tell(WATCHDOG, Note(SnapshotFailed(step=self.step, error=error, is_last=True)))
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
        if not self.world.program.restores:
            self.step, self.value = 0, self.world.program.first_value(self.incarnation)
            yield from self._number()
            return
        for durable_only in (self.world.program.is_staging, True):
            answer = yield from self._ask(Restore(durable_only))
            assert isinstance(answer, RestoreFrom)
            self._check_answer(answer)
            if answer.source == "memory" and not (yield from self._map(Path(answer.path))):
                continue
            self._take_over(answer)
            yield self.world.program.restore_s
            yield from self._put_state()
            self._say_restored()
            return
        raise ProgramError("UserError", "the state in memory is gone, and was answered twice")

    def _number(self) -> Doing:
        """Number the snapshots after all known ones."""
        answer = yield from self._ask(Restore(durable_only=True))
        assert isinstance(answer, RestoreFrom)
        self._sequence = max(self._sequence, answer.sequence)
        self._say_restored()

    def _check_answer(self, answer: RestoreFrom) -> None:
        if answer.error:
            self.world.note(history.Refused(self.incarnation, answer.error))
            raise ProgramError("UserError", answer.error, permanent=True)
        self._sequence = max(self._sequence, answer.sequence)

    def _put_state(self) -> Doing:
        """Put step and value where they live, if that is elsewhere."""
        yield from ()

    def _say_restored(self) -> None:
        self._tell(CHECKPOINT, Restored())

    def _map(self, path: Path) -> Generator[Wait, bool, bool]:
        """Map a slot privately. Return False if it is no longer there."""
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
        self._origin = (answer.source, answer.path)
        where = Path(answer.path) if answer.source == "memory" else None
        self._never = where
        self._note_restored(answer)

    def _note_restored(self, answer: RestoreFrom) -> None:
        self.world.note(history.Restored(self.incarnation, answer.source, answer.path, self.step, self.value))

    # -- snapshots -------------------------------------------------------------------------------------------
    def _reserve(self) -> None:
        if not self._is_reserved and not self.world.program.is_staging:
            self._is_reserved = True
            assert self._pool is not None
            self._pool.reserve(self.world.program.slots, self._never)

    def _snapshot(self, want: str) -> int | None:
        """Capture now, copy beside the next steps and publish. Return the sequence, or None without a free slot."""
        if not self._read_state():
            return None
        self._taken = self._state_count
        step, value, sequence = self.step, self.value, self._sequence + 1
        taken = history.Taken(self.run_id, self.incarnation, sequence, step, value)
        if self.world.program.is_staging:
            self._sequence = sequence
            self.world.note(taken)
            prefix = f"/shm/staged.{sequence}.{self.incarnation}.{self.run_id}/model.ckpt-{step}"
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
        self.world.note(taken)
        now_s, program = self.world.clock.now_s, self.world.program
        self._cadence.copies.captured(sequence, now_s, None if want else self._snapshot_s)
        self._sequence, self._snapshot_s = sequence, now_s + program.snapshot_s
        self.world.clock.after(program.copy_s, lambda: self._publish(slot, sequence, step, value, want, now_s))
        return sequence

    def _publish(self, slot: Slot, sequence: int, step: int, value: int, want: str, captured_s: float) -> None:
        if self.is_dead:
            return
        if self.is_frozen:
            again = lambda: self._publish(slot, sequence, step, value, want, captured_s)  # noqa: E731
            self.world.clock.at(self.frozen_until_s, again)
            return
        assert self._pool is not None
        self._pool.publish(slot, sequence, step, value)
        self._space(sequence, captured_s)
        self.world.note(history.Wrote(self.pid, self.incarnation))
        self.world.note(history.Published(self.run_id, sequence, step, captured_s))
        self._tell(CHECKPOINT, Snapshot(sequence, step, want))  # type: ignore[arg-type]
        self.wake()

    def _space(self, sequence: int, captured_s: float) -> None:
        """Set when the next one is due if copies are kept; otherwise that is known since the capture."""
        now_s = self.world.clock.now_s
        self._cadence.learn(0.0, now_s - captured_s, None, self.world.program.step_s)
        due_s = self._cadence.next_due_s(now_s, sequence)
        if self._cadence.copies.lag_s and due_s is not None:
            self._snapshot_s = due_s

    def _take(self, reason: Reason) -> Generator[Wait, bool, bool]:
        """Take a snapshot now for that reason. Return False if no slot becomes free."""
        self._reserve()
        until_s = self.world.clock.now_s + SLOT_WAIT_S_MAX
        while (sequence := self._snapshot(reason)) is None:
            if self.world.clock.now_s >= until_s:
                return False
            yield 0.1
        self._asked_for = (self._taken, sequence)
        return True

    @property
    def _has_saved(self) -> bool:
        return self._durable_sequence >= self._asked_for[1]

    @property
    def _has_lost(self) -> bool:
        return self._pool is not None and self._pool.has_lost()

    # -- small things ----------------------------------------------------------------------------------------
    def _add_record(self, what: str) -> None:
        self._records += 1
        self._streams.add_event(self._writer, f"{self.incarnation}:{self._records}:{what}:{self.step}".encode())

    def let_go(self) -> None:
        super().let_go()
        self._streams.detach_from_run()
