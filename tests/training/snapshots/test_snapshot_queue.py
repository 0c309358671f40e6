"""Pure code decides what is captured when and for whom, and holds under every interleaving."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procsv.training.snapshots.cadence import Cadence
from procsv.training.snapshots.snapshot_queue import (
    AGAIN_S,
    FAILED_PAUSE_S,
    PATIENCE_S,
    STOP_PATIENCE_S,
    Record,
    SnapshotQueue,
    SnapshotRequest,
    Work,
)
from procsv.training.snapshots.snapshot_state import SnapshotState

SAVE = SnapshotRequest("periodic")
PINNED = SnapshotRequest("periodic", pinned=True, until=SnapshotState.CAPTURED)
STOP = SnapshotRequest("preempt", reuses=True, for_stop=True)
LAST = SnapshotRequest("final", until=SnapshotState.PUBLISHED, reuses=True)


@pytest.fixture
def queue() -> SnapshotQueue:
    return SnapshotQueue(Cadence(10.0))


def capture(queue: SnapshotQueue, now_s: float, sequence: int, calls: int = 0) -> list[Record]:
    """Make and publish the due capture."""
    batch = queue.choose_batch(now_s, calls)
    if batch:
        queue.captured(batch, sequence, calls, now_s)
        publish(queue, now_s)
    return batch


def state(record: Record) -> SnapshotState:
    return record.state


def publish(queue: SnapshotQueue, now_s: float) -> int:
    assert queue.next_work(now_s) is Work.COPY
    sequence = queue.next_copy()
    queue.copied(sequence)
    queue.published(sequence, now_s)
    return sequence


def test_a_periodic_snapshot_is_prepared_then_left_to_the_training_thread_and_spaced_from_its_end(
    queue: SnapshotQueue,
) -> None:
    queue.start_cadence(100.0)
    assert queue.next_work(109.9) is Work.SLEEP
    assert queue.wakes_s(109.9) == 110.0
    assert queue.next_work(110.0) is Work.PREPARE
    assert not queue.is_due(110.0)
    queue.add_cadence_request(110.0)
    assert queue.is_due(110.0)
    assert queue.next_work(110.0) is Work.SLEEP
    assert queue.wakes_s(110.0) == 110.0 + PATIENCE_S
    assert [record.request.want for record in capture(queue, 110.5, 1)] == [""]
    assert not queue.records, "nobody asked for it: nobody waits for it"
    assert queue.wakes_s(110.5) == 120.5


def test_with_a_copy_on_another_machine_the_next_is_spaced_from_the_capture_by_what_the_copy_leaves_of_the_interval(
    queue: SnapshotQueue,
) -> None:
    queue.start_cadence(0.0)
    queue.add_cadence_request(10.0)
    queue.captured(queue.choose_batch(10.0, 1), 1, 1, 10.0)
    publish(queue, 10.5)
    queue.copy_kept(1, 12.0)
    assert queue.wakes_s(12.0) == 20.5, "it was spaced before"
    queue.add_cadence_request(20.5)
    queue.captured(queue.choose_batch(20.5, 2), 2, 2, 20.5)
    publish(queue, 21.0)
    assert queue.wakes_s(21.0) == 28.5


def test_a_capture_that_waits_for_a_step_or_other_tasks_is_due_that_much_earlier_the_next_times(
    queue: SnapshotQueue,
) -> None:
    queue.start_cadence(0.0)
    queue.add_cadence_request(10.0)
    queue.captured(queue.choose_batch(11.25, 1), 1, 1, 11.25)
    publish(queue, 11.5)
    queue.copy_kept(1, 13.25)
    queue.add_request(SAVE, 13.0)
    queue.captured(queue.choose_batch(17.0, 1), 2, 2, 17.0)
    publish(queue, 17.0)
    assert queue.cadence.copies.late_s == 1.25, "one that is asked for is none of them"
    queue.add_cadence_request(21.5)
    queue.captured(queue.choose_batch(21.5, 3), 3, 3, 21.5)
    publish(queue, 21.5)
    assert queue.wakes_s(21.5) == 21.5 + 10.0 - 2.0 - 1.25, "the longest counts"


def test_the_worker_captures_by_itself_when_the_training_thread_does_not_come_by_and_checks_again_later(
    queue: SnapshotQueue,
) -> None:
    queue.add_request(SAVE, 0.0)
    assert queue.next_work(PATIENCE_S) is Work.CAPTURE
    queue.postpone_worker(PATIENCE_S)
    assert queue.next_work(PATIENCE_S) is Work.SLEEP
    assert queue.next_work(2 * PATIENCE_S) is Work.CAPTURE


def test_one_capture_serves_everything_that_is_due(queue: SnapshotQueue) -> None:
    save, pinned, stop = (queue.add_request(request, 0.0) for request in (SAVE, PINNED, STOP))
    assert queue.choose_batch(0.0, 0) == [save, pinned]
    queue.captured([save, pinned], 7, 0, 0.0)
    assert (save.sequence, pinned.sequence, stop.sequence) == (7, 7, 0)
    publish(queue, 0.0)
    queue.saved(7)
    assert state(save) is state(pinned) is SnapshotState.DURABLE
    assert queue.records == [stop]


def test_nothing_newer_is_captured_while_a_pinned_snapshot_may_become_a_checkpoint(queue: SnapshotQueue) -> None:
    queue.start_cadence(0.0)
    queue.add_request(PINNED, 0.0)
    capture(queue, 0.0, 1)
    queue.add_cadence_request(10.0)
    save = queue.add_request(SAVE, 10.0)
    assert not queue.is_due(20.0)
    assert queue.next_work(20.0) is Work.SLEEP
    assert queue.choose_batch(20.0, 9, save) == []
    assert queue.choose_batch(20.0, 9, save, is_urgent=True) == [save]
    queue.save_failed(1)
    assert len(queue.choose_batch(20.0, 9)) == 2


def test_a_stop_overtakes_a_pinned_snapshot_and_the_periodic_one_does_not(queue: SnapshotQueue) -> None:
    queue.add_request(PINNED, 0.0)
    capture(queue, 0.0, 1)
    queue.start_cadence(0.0)
    queue.add_cadence_request(10.0)
    queue.is_stopping = True
    stop = queue.add_request(STOP, 10.0)
    assert not queue.is_due(10.0), "the program may come to its end by itself"
    assert queue.next_work(10.0 + STOP_PATIENCE_S) is Work.CAPTURE
    assert queue.choose_batch(10.0 + STOP_PATIENCE_S, 9) == [stop]


def test_the_last_state_is_captured_once_however_many_ask_for_it(queue: SnapshotQueue) -> None:
    last, stop = queue.add_request(LAST, 0.0), queue.add_request(STOP, 0.0)
    assert queue.choose_batch(0.0, 40, last) == [last]
    queue.captured([last], 3, 40, 0.0)
    assert queue.choose_batch(9.0, 40) == []
    assert (stop.sequence, stop.state) == (3, SnapshotState.CAPTURED)
    publish(queue, 9.0)
    queue.saved(3)
    assert state(stop) is SnapshotState.DURABLE
    again = queue.add_request(LAST, 9.0)
    assert queue.choose_batch(9.0, 41, again) == [again], "a call has ended since"


def test_a_snapshot_that_never_reached_the_service_is_not_used_again(queue: SnapshotQueue) -> None:
    last = queue.add_request(LAST, 0.0)
    queue.captured(queue.choose_batch(0.0, 40), 3, 40, 0.0)
    queue.fail(queue.of(3), OSError("torn"), 0.0)
    assert state(last) is SnapshotState.FAILED
    again = queue.add_request(LAST, 0.0)
    assert queue.choose_batch(0.0, 40) == [again]


def test_without_a_slot_the_capture_is_retried_soon(queue: SnapshotQueue) -> None:
    queue.add_request(SAVE, 0.0)
    queue.put_off(queue.choose_batch(0.0, 0), 0.0)
    assert not queue.is_due(0.0)
    assert queue.wakes_s(0.0) == AGAIN_S
    assert queue.is_due(AGAIN_S)


def test_a_state_that_has_outgrown_its_slot_is_captured_again(queue: SnapshotQueue) -> None:
    save = queue.add_request(SAVE, 0.0)
    queue.captured(queue.choose_batch(0.0, 5), 1, 5, 0.0)
    queue.outgrown(1, 1.0)
    assert state(save) is SnapshotState.REQUESTED
    assert queue.is_due(1.0)
    assert capture(queue, 1.0, 2, 6) == [save]
    queue.saved(2)
    assert state(save) is SnapshotState.DURABLE


def test_periodic_snapshots_pause_after_a_failure(queue: SnapshotQueue) -> None:
    queue.start_cadence(0.0)
    queue.add_cadence_request(10.0)
    queue.fail(queue.choose_batch(10.0, 0), OSError("no"), 10.0)
    assert queue.wakes_s(10.0) == 10.0 + FAILED_PAUSE_S + 10.0


def test_a_snapshot_that_has_outgrown_its_slot_is_not_used_again(queue: SnapshotQueue) -> None:
    queue.add_request(SAVE, 0.0)
    queue.captured(queue.choose_batch(0.0, 5), 1, 5, 0.0)
    queue.outgrown(1, 1.0)
    last = queue.add_request(LAST, 1.0)
    assert last in queue.choose_batch(1.0, 5)


def test_a_snapshot_in_removed_memory_is_captured_again_unless_it_is_durable(queue: SnapshotQueue) -> None:
    saved, published, failed = (queue.add_request(SAVE, 0.0) for _ in range(3))
    for sequence, record in enumerate((saved, failed, published), 1):
        queue.captured([record], sequence, sequence, 0.0)
        publish(queue, 0.0)
    queue.saved(1)
    queue.save_failed(2)
    queue.start_cadence(0.0)
    queue.memory_checked(5.0, is_lost=True)
    assert (state(saved), state(failed), state(published)) == (
        SnapshotState.DURABLE,
        SnapshotState.REQUESTED,
        SnapshotState.REQUESTED,
    )
    assert queue.choose_batch(5.0, 3) == [published, failed]
    assert queue.next_work(5.0) is Work.PREPARE, "the cadence's next snapshot is due at once"


def test_the_worker_checks_every_two_seconds_and_at_once_after_an_error(queue: SnapshotQueue) -> None:
    queue.memory_checked(0.0, is_lost=False)
    assert (queue.wakes_s(1.0), queue.next_work(1.9), queue.next_work(2.0)) == (2.0, Work.SLEEP, Work.CHECK_MEMORY)
    queue.memory_checked(2.0, is_lost=False)
    queue.put_off([], 2.5)
    assert queue.next_work(2.5) is Work.CHECK_MEMORY


def test_snapshots_are_copied_in_the_order_of_their_capture(queue: SnapshotQueue) -> None:
    for sequence in (1, 2, 3):
        queue.add_request(SAVE, 0.0)
        queue.captured(queue.choose_batch(0.0, sequence), sequence, sequence, 0.0)
    assert [publish(queue, 0.0) for _ in range(3)] == [1, 2, 3]


def test_a_save_that_fails_and_is_repaired_is_durable(queue: SnapshotQueue) -> None:
    save = queue.add_request(SAVE, 0.0)
    capture(queue, 0.0, 4)
    queue.save_failed(4)
    assert state(save) is SnapshotState.FAILED
    assert save.failure is None, "the service tries again"
    queue.saved(6)
    assert state(save) is SnapshotState.DURABLE


def test_a_closed_queue_publishes_what_is_captured_and_refuses_the_rest(queue: SnapshotQueue) -> None:
    queue.start_cadence(0.0)
    captured = queue.add_request(SAVE, 0.0)
    queue.captured(queue.choose_batch(0.0, 0), 1, 0, 0.0)
    queue.add_cadence_request(10.0)
    late = queue.add_request(LAST, 10.0)
    queue.stop_captures(RuntimeError("closed"), SnapshotState.CAPTURED)
    after = queue.add_request(LAST, 10.0)
    assert publish(queue, 10.0) == 1
    assert queue.next_work(99.0) is Work.END
    assert state(captured) is SnapshotState.PUBLISHED
    assert isinstance(late.failure, RuntimeError)
    assert isinstance(after.failure, RuntimeError)


@dataclass
class World:
    """A training thread, a worker and a service that take steps in any order."""

    queue: SnapshotQueue = field(default_factory=lambda: SnapshotQueue(Cadence(2.0)))
    now_s: float = 0.0
    calls: int = 0
    sequence: int = 0
    asked: list[Record] = field(default_factory=list)
    published: list[int] = field(default_factory=list)

    def ask(self, request: SnapshotRequest) -> None:
        self.queue.is_stopping |= request.for_stop
        self.asked.append(self.queue.add_request(request, self.now_s))

    def capture(self, outcome: str) -> None:
        batch = self.queue.choose_batch(self.now_s, self.calls)
        if not batch:
            return
        outstanding = [
            r for r in self.asked if r.request.pinned and SnapshotState.CAPTURED <= r.state <= SnapshotState.PUBLISHED
        ]
        if outstanding:
            assert self.queue.is_stopping
            assert all(record.request.want for record in batch), "the cadence has passed over a pinned snapshot"
        if outcome == "taken":
            self.sequence += 1
            self.queue.captured(batch, self.sequence, self.calls, self.now_s)
        elif outcome == "no slot":
            self.queue.put_off(batch, self.now_s)
        else:
            self.queue.fail(batch, OSError(outcome), self.now_s)

    def work(self, outcome: str) -> Work:
        work = self.queue.next_work(self.now_s)
        if work is Work.COPY:
            sequence = self.queue.next_copy()
            if outcome == "taken":
                self.queue.copied(sequence)
                self.queue.published(sequence, self.now_s)
                self.published.append(sequence)
            elif outcome == "no slot":
                self.queue.outgrown(sequence, self.now_s)
            elif outcome == "lost":
                self.queue.snapshot_lost(sequence, self.now_s)
            else:
                self.queue.fail(self.queue.of(sequence), OSError(outcome), self.now_s)
        elif work is Work.CHECK_MEMORY:
            self.queue.memory_checked(self.now_s, is_lost=False)
        elif work is Work.PREPARE:
            self.queue.add_cadence_request(self.now_s)
        elif work is Work.CAPTURE:
            self.capture(outcome)
            self.queue.postpone_worker(self.now_s)
        return work

    def settle(self) -> None:
        """From here on nothing fails."""
        for _ in range(500):
            if self.work("taken") in (Work.SLEEP, Work.END):
                self.queue.saved(max(self.published, default=0))
                if all(record.state >= SnapshotState.DURABLE for record in self.asked):
                    return
                self.now_s = max(self.now_s, self.queue.wakes_s(self.now_s) or self.now_s)
        raise AssertionError([record for record in self.asked if record.state < SnapshotState.DURABLE])


OUTCOMES = st.sampled_from(["taken", "taken", "taken", "no slot", "fails"])
STEPS = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from([SAVE, PINNED, PINNED, STOP, LAST])),
    st.tuples(st.just("call"), OUTCOMES),
    st.tuples(st.just("work"), OUTCOMES | st.just("lost")),
    st.tuples(st.just("lost"), st.none()),
    st.tuples(st.just("saved"), st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from([0.05, 0.5, 1.0, 3.0])),
)


@given(st.lists(STEPS, max_size=40))
def test_under_every_interleaving_requests_settle_in_order_and_no_pinned_snapshot_is_overtaken(
    steps: list[tuple[str, object]],
) -> None:
    world = World()
    world.queue.start_cadence(0.0)
    for what, how in steps:
        match what, how:
            case "ask", SnapshotRequest():
                world.ask(how)
            case "call", str():
                world.calls += 1
                world.capture(how)
            case "work", str():
                world.work(how)
            case "saved", bool():
                (world.queue.saved if how else world.queue.save_failed)(max(world.published, default=0))
            case "lost", None if not any(record.state is SnapshotState.CAPTURED for record in world.queue.records):
                world.queue.memory_checked(world.now_s, is_lost=True)
            case "wait", float():
                world.now_s += how
    world.settle()
    assert world.published == sorted(set(world.published))
    for record in world.asked:
        assert state(record) is SnapshotState.DURABLE or record.failure is not None, record


def test_an_idle_queue_sleeps_without_end(queue: SnapshotQueue) -> None:
    assert queue.next_work(5.0) is Work.SLEEP
    assert queue.wakes_s(5.0) is None
