"""The chief pauses the steps of all tasks or knows that it did not, and nobody waits without a limit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from procsv.base.identity import TaskId
from procsv.base.run.paths import RunPaths
from procsv.base.system.system_clock import SystemClock
from procsv.training.runtime import step_gate
from procsv.training.runtime.step_gate import HELD_S_MAX, SETTLE_S, StepGate
from tests.support.fake_clock import FakeClock
from tests.support.naming import Naming
from tests.support.programs import running, until
from tests.training.counting_task import CountingTask

CHIEF, FIRST, SECOND = TaskId("chief"), TaskId("worker", 0), TaskId("worker", 1)
GATHER_S = 60.0  # a worker's step ends much sooner, however busy the machine is


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    (tmp_path / "run").mkdir()
    return RunPaths(tmp_path, tmp_path / "run", tmp_path / "shm")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests that are not about limits independent of the machine's load."""
    monkeypatch.setattr(step_gate, "HELD_S_MAX", GATHER_S)
    monkeypatch.setattr(step_gate, "GATHER_S_MAX", GATHER_S)
    monkeypatch.setattr(step_gate, "WAIT_S_MAX", 2 * GATHER_S)


def gate_of(paths: RunPaths, task: TaskId, *others: TaskId) -> StepGate:
    return StepGate(paths, task, others, SystemClock())


@pytest.fixture
def training() -> Iterator[Callable[[StepGate], CountingTask]]:
    workers: list[CountingTask] = []

    def start(gate: StepGate) -> CountingTask:
        workers.append(CountingTask(gate))
        return workers[-1]

    yield start
    for worker in workers:
        worker.end()


def test_no_step_of_another_task_is_under_way_while_the_chief_pauses(
    paths: RunPaths, training: Callable[[StepGate], CountingTask]
) -> None:
    chief = gate_of(paths, CHIEF, FIRST, SECOND)
    workers = [training(gate_of(paths, task, CHIEF)) for task in (FIRST, SECOND)]
    for _ in range(200):
        with chief.hold(GATHER_S) as hold:
            seen = [list(worker.counted) for worker in workers]
            again = [list(worker.counted) for worker in workers]
        assert hold.is_whole, hold.why
        assert seen == again
        assert all(first == second for first, second in seen)
        for worker in workers:
            worker.wait_step()


def test_a_task_in_a_long_step_is_named_and_the_others_go_on(
    paths: RunPaths, training: Callable[[StepGate], CountingTask]
) -> None:
    chief = gate_of(paths, CHIEF, FIRST, SECOND)
    worker, slow = training(gate_of(paths, FIRST, CHIEF)), gate_of(paths, SECOND, CHIEF)
    slow.open_steps()

    def step() -> None:
        why = [""]

        def hold_once() -> None:
            with chief.hold(0.01) as hold:
                worker.wait_step()
            assert not hold.is_whole
            why.append(hold.why)

        # Otherwise a step of the other task has lasted longer than that.
        until(lambda: why[-1].startswith("worker.1 "), hold_once)

    slow.guard(step)()


def test_a_living_task_without_a_step_yet_may_train_past_the_gate(paths: RunPaths) -> None:
    chief = gate_of(paths, CHIEF, FIRST)
    with chief.hold(0.01) as hold:
        pass
    assert hold.why == "worker.0 has not begun"
    worker = gate_of(paths, FIRST, CHIEF)
    with chief.hold(0.01) as hold:
        pass
    assert (hold.is_whole, hold.why) == (False, Naming("worker.0 "))
    worker.open_steps()
    with chief.hold(0.01) as hold:
        pass
    assert hold.is_whole, hold.why


DIES = """
    import sys
    from pathlib import Path
    from procsv.base.identity import TaskId
    from procsv.base.run.paths import RunPaths
    from procsv.base.system.system_clock import SystemClock
    from procsv.training.runtime.step_gate import StepGate

    home = Path(sys.argv[1])
    gate = StepGate(RunPaths(home, home / "run", home / "shm"), TaskId("worker", 0), [], SystemClock())
    gate.open_steps()
    def step():
        print("within")
        sys.stdin.readline()
    gate.guard(step)()
    print("between")
    sys.stdin.readline()
"""


@pytest.mark.parametrize("is_within", [True, False])
def test_a_task_that_died_in_a_step_is_waited_for_because_the_servers_may_still_be_busy(
    paths: RunPaths, is_within: bool
) -> None:
    clock = FakeClock()
    chief = StepGate(paths, CHIEF, [FIRST], clock)
    with running(DIES, paths.logdir) as worker:
        worker.wait_said("within")
        if not is_within:
            worker.tell()
            worker.wait_said("between")
        worker.kill()
    with chief.hold(0.0) as hold:
        pass
    assert hold.why.startswith("worker.0 ") is is_within
    assert bool(hold.why) is is_within
    clock.advance(SETTLE_S)
    with chief.hold(0.0) as hold:
        pass
    assert hold.is_whole, hold.why


def test_the_others_go_on_when_a_capture_takes_longer_than_the_pause(
    paths: RunPaths, training: Callable[[StepGate], CountingTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    chief, worker = gate_of(paths, CHIEF, FIRST), training(gate_of(paths, FIRST, CHIEF))
    monkeypatch.setattr(step_gate, "HELD_S_MAX", HELD_S_MAX)
    with chief.hold(GATHER_S) as hold:
        for _ in range(2):  # one may have ended before
            worker.wait_step()
    assert not hold.is_whole
    assert "longer than" in hold.why


def test_a_chief_that_never_releases_is_not_waited_for_and_knows_that_it_did_not_pause(
    paths: RunPaths, training: Callable[[StepGate], CountingTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    chief, worker = gate_of(paths, CHIEF, FIRST), training(gate_of(paths, FIRST, CHIEF))
    monkeypatch.setattr(step_gate, "WAIT_S_MAX", 0.01)
    with chief.hold(GATHER_S) as hold:
        for _ in range(3):
            worker.wait_step()
    assert not hold.is_whole
    worker.wait_step()


def test_nothing_is_paused_once_the_files_were_removed(paths: RunPaths) -> None:
    chief, worker = gate_of(paths, CHIEF, FIRST), gate_of(paths, FIRST, CHIEF)
    worker.open_steps()
    shutil.rmtree(paths.run_dir)
    paths.run_dir.mkdir()
    with chief.hold(0.01) as hold:
        pass
    assert "was removed" in hold.why
    with gate_of(paths, CHIEF, FIRST).hold(0.01) as hold:
        pass
    assert hold.why == "worker.0 has not begun"
