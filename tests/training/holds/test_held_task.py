"""A chief holds the steps of tasks on other machines over real sockets, or knows that it did not; nobody stands without a limit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from procsv.base.identity import TaskId
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging.bulk_transport import BulkClient
from procsv.ipc.messaging.curve_transport import KeyPair
from procsv.ipc.messaging.messages import HoldTold
from procsv.training.holds import held_steps, limits
from procsv.training.holds import holding as decisions
from procsv.training.holds.far_holder import FarHolder
from procsv.training.holds.frames import Hold, pack
from procsv.training.holds.held_task import HeldTask
from procsv.training.holds.limits import ASK_S
from procsv.training.runtime.step_hold import HELD_S_MAX, SETTLE_S
from tests.support.fake_clock import FakeClock
from tests.support.ports import hold_ports
from tests.support.programs import DEADLINE_S
from tests.training.counting_task import CountingTask

FIRST, SECOND = TaskId("worker", 0), TaskId("worker", 1)
PATIENT_S = 60.0  # a worker's step ends much sooner, however loaded the machine is


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not about the limits must not depend on the load of the machine."""
    for module, name in (
        (limits, "HELD_S_MAX"),
        (limits, "GATHER_S_MAX"),
        (held_steps, "GATHER_S_MAX"),
        (decisions, "HELD_S_MAX"),
        (decisions, "RELEASE_S_MAX"),
    ):
        monkeypatch.setattr(module, name, PATIENT_S)
    monkeypatch.setattr(held_steps, "SETTLE_S", 0.0)


class Worker(CountingTask):
    """One that is held from another machine."""

    def __init__(self) -> None:
        self.task = HeldTask(SystemClock())
        super().__init__(self.task)

    def end(self) -> None:
        super().end()
        self.task.close()


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    made = [Worker(), Worker()]
    yield made
    for worker in made:
        worker.end()


@pytest.fixture
def holding() -> Iterator[Callable[..., FarHolder]]:
    made: list[FarHolder] = []

    def make(*workers: Worker, clock: object = None, is_first: bool = True) -> FarHolder:
        tasks = (FIRST, SECOND)[: len(workers)]
        hosts = dict.fromkeys(tasks, "127.0.0.1")
        holder = FarHolder(hosts, clock or SystemClock(), lambda: None, is_first=is_first)  # type: ignore[arg-type]  # a FakeClock
        for task, worker in zip(tasks, workers, strict=True):
            holder.told(HoldTold(task, 1, worker.task.offer))
        made.append(holder)
        return holder

    yield make
    for holder in made:
        holder.close()


def hold_once(holder: FarHolder, gather_s: float = PATIENT_S) -> str:
    """Why it was not whole; "" if it was."""
    with holder.hold(gather_s) as hold:
        pass
    assert hold.is_whole is not bool(hold.why)
    return hold.why


def test_no_step_of_another_task_is_under_way_while_the_chief_holds(
    workers: list[Worker], holding: Callable[..., FarHolder]
) -> None:
    holder = holding(*workers)
    for _ in range(100):
        with holder.hold(PATIENT_S) as hold:
            seen = [list(worker.counted) for worker in workers]
            again = [list(worker.counted) for worker in workers]
        assert hold.is_whole, hold.why
        assert seen == again
        assert all(first == second for first, second in seen)
        for worker in workers:
            worker.wait_step(2)


def test_a_task_in_a_long_step_is_named_and_the_others_go_on(
    workers: list[Worker], holding: Callable[..., FarHolder]
) -> None:
    holder, (worker, slow) = holding(*workers), workers
    assert hold_once(holder) == ""
    slow.goes.clear()
    while slow.counted[0] == slow.counted[1]:
        slow.ended.wait(0.001)  # until it stands within a step
    why = ""
    while not why.startswith("worker.1 was in a step"):  # else the link was slower than the limit
        with holder.hold(1.0) as hold:
            worker.wait_step(2)
        why = hold.why
        assert not hold.is_whole
    slow.goes.set()
    while why := hold_once(holder):
        assert why.startswith("worker.1 "), why


def test_the_others_go_on_while_a_capture_takes_longer_than_they_are_held(
    workers: list[Worker], holding: Callable[..., FarHolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = holding(*workers)
    monkeypatch.setattr(limits, "HELD_S_MAX", HELD_S_MAX)
    with holder.hold(PATIENT_S) as hold:
        for worker in workers:
            worker.wait_step(2)
    assert not hold.is_whole
    assert "has gone on before it was let go" in hold.why


def test_a_task_that_hears_nothing_more_of_who_holds_it_goes_on_by_itself(workers: list[Worker]) -> None:
    (worker, _), offer = workers, workers[0].task.offer
    keys = KeyPair(offer.client_public, offer.client_secret)
    client = BulkClient(f"127.0.0.1:{offer.port}", keys, offer.server_key, 1024, 8)
    try:
        client.send(pack(Hold("chief", 1, 0.01)))
        client.wait(DEADLINE_S)
        assert client.receive(), "it has heard of the hold"
        worker.wait_step(2)
    finally:
        client.close()


def test_a_task_that_does_not_answer_is_waited_for_once_and_its_next_attempt_is_held(
    workers: list[Worker], holding: Callable[..., FarHolder]
) -> None:
    holder, gone = holding(*workers), workers[1]
    assert hold_once(holder) == ""
    gone.end()
    assert hold_once(holder, 0.01).startswith("worker.")  # the other may not have answered in time, either
    while (why := hold_once(holder)) != "worker.1 does not answer":
        assert why.startswith("worker."), why
    workers[1] = Worker()
    holder.told(HoldTold(SECOND, 2, workers[1].task.offer))
    assert hold_once(holder) == ""
    holder.told(HoldTold(SECOND, 1, gone.task.offer))  # old news
    assert hold_once(holder) == ""


def test_nobody_is_held_as_long_as_a_task_is_not_known_and_it_is_asked_for_once_a_second(workers: list[Worker]) -> None:
    clock, asked = FakeClock(), list[float]()
    hosts = dict.fromkeys((FIRST, SECOND), "127.0.0.1")
    holder = FarHolder(hosts, clock, lambda: asked.append(clock.now_s), is_first=True)
    try:
        holder.told(HoldTold(FIRST, 1, workers[0].task.offer))
        for _ in range(3):
            with holder.hold(PATIENT_S) as hold:
                workers[0].wait_step(2)
            assert hold.why == "it is not known where worker.1 is held"
            clock.advance(ASK_S / 2)
        assert asked == [0.0, ASK_S]
        holder.told(HoldTold(SECOND, 1, workers[1].task.offer))
        assert hold_once(holder) == ""
    finally:
        holder.close()


@pytest.mark.parametrize("is_between", [True, False])
def test_a_task_that_has_ended_is_not_waited_for_once_the_servers_have_done_its_last_step(
    workers: list[Worker], holding: Callable[..., FarHolder], is_between: bool
) -> None:
    clock = FakeClock()
    holder = holding(*workers, clock=clock)
    holder.told(HoldTold(SECOND, 1, None, is_between=is_between))
    assert hold_once(holder) == ("" if is_between else "worker.1 has just ended")
    clock.advance(SETTLE_S)
    assert hold_once(holder) == ""


def test_the_chief_after_one_that_died_holds_nobody_until_the_servers_have_done_its_last_step(
    workers: list[Worker], holding: Callable[..., FarHolder]
) -> None:
    clock = FakeClock()
    holder = holding(*workers, clock=clock, is_first=False)
    assert hold_once(holder) == "the chief before this one may have died in a step just now"
    clock.advance(SETTLE_S)
    assert hold_once(holder) == ""


def test_a_task_is_held_at_the_second_port_after_that_of_the_coordinator_or_at_any_if_another_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with contextlib.ExitStack() as held:
        port, *_ = hold_ports(held)
        monkeypatch.setenv("PROCSV_PORT", str(port))
        first = HeldTask(SystemClock())
        held.callback(first.close)
        second = HeldTask(SystemClock())
        held.callback(second.close)
        assert first.offer.port == port + 2
        assert second.offer.port not in (0, port + 2)
