"""The watchdog injects each planned fault at its time and as often as planned, across restarts and launches."""

from pathlib import Path

import pytest

from procsv.faults.plan import Plan
from procsv.faults.plan_parser import parse_fault
from procsv.watchdog.core.fault_schedule import Schedule
from procsv.watchdog.edge.injector import corrupt_newest, newest_files


def _schedule(*texts: str, done: list[int] | None = None, seed: int = 0) -> Schedule:
    plan = Plan(tuple(parse_fault(text) for text in texts), seed)
    return Schedule(plan, done or [0] * len(texts), 100.0)


def _due(schedule: Schedule, now_s: float, step: int = -1) -> list[int]:
    return [number for number, _ in schedule.due(now_s, step)]


def test_a_fault_after_a_time_happens_once() -> None:
    schedule = _schedule("kill summary after 10s")
    assert schedule.next_due_s() == 110
    assert _due(schedule, 109.9) == []
    assert _due(schedule, 110) == _due(schedule, 130) == [0]
    schedule.happened(0, 130)
    assert _due(schedule, 10_000) == []
    assert schedule.next_due_s() is None


@pytest.mark.parametrize(
    ("text", "due_s"),
    [
        ("kill summary after 0s", 100.0),
        ("kill summary after 0.5s", 100.5),
        ("kill summary every 0.5s", 100.5),
        ("kill summary every 1s", 101.0),
    ],
)
def test_a_fault_may_be_due_at_once_or_within_the_first_second(text: str, due_s: float) -> None:
    schedule = _schedule(text)
    assert schedule.next_due_s() == due_s
    assert _due(schedule, due_s) == [0]
    assert _due(schedule, due_s - 0.1) == []


def test_a_repeated_fault_counts_from_its_last_time() -> None:
    schedule = _schedule("kill summary every 10s, 2 times")
    assert _due(schedule, 110) == [0]
    schedule.happened(0, 114)
    assert schedule.next_due_s() == 124
    schedule.happened(0, 124)
    assert schedule.next_due_s() is None


def test_a_fault_at_a_step_waits_for_it() -> None:
    schedule = _schedule("stop checkpoint for 3s at step 50")
    assert schedule.next_due_s() is None
    assert _due(schedule, 1e6, 49) == []
    assert _due(schedule, 101, 60) == [0]


def test_a_fault_every_so_many_steps_happens_at_each_multiple() -> None:
    schedule = _schedule("kill checkpoint every 100 steps")
    for number in range(1, 4):
        assert _due(schedule, 101, number * 100 - 1) == []
        assert _due(schedule, 101, number * 100) == [0]
        schedule.happened(0, 101)


def test_a_step_of_the_trainers_own_is_left_to_the_trainer() -> None:
    assert _due(_schedule("kill trainer at step 5"), 1e6, 1000) == []
    assert _due(_schedule("preempt trainer at step 5", "stop trainer for 1s at step 5"), 1e6, 1000) == [0, 1]
    assert _due(_schedule("kill trainer after 5s"), 1e6, 1000) == [0]


def test_a_fault_of_an_earlier_launch_does_not_happen_again() -> None:
    texts = ("kill watchdog at step 5", "kill watchdog every 100 steps", "kill summary after 1s, 3 times")
    schedule = _schedule(*texts, done=[1, 2, 2])
    assert _due(schedule, 200, 250) == [2]
    assert _due(schedule, 200, 300) == [1, 2]


def test_random_faults_follow_the_schedule_of_their_seed() -> None:
    def times(seed: int) -> list[float]:
        schedule, found = _schedule("kill trainer at random every 30s", seed=seed), []
        for _ in range(20):
            due_s = schedule.next_due_s()
            assert due_s is not None
            found.append(due_s)
            schedule.happened(0, due_s)
        return found

    assert times(7) == times(7) != times(8)


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    for step in (9, 10):
        (tmp_path / f"model.ckpt-{step}.index").write_bytes(b"index")
        (tmp_path / f"model.ckpt-{step}.data-00000-of-00001").write_bytes(bytes(range(100)))
    return tmp_path


@pytest.mark.parametrize("how", ["flip", "truncate", "delete"])
def test_only_the_newest_checkpoint_is_damaged(logdir: Path, how: str) -> None:
    victim = logdir / "model.ckpt-10.data-00000-of-00001"
    assert corrupt_newest(logdir, how) == victim
    if how == "delete":
        assert not victim.exists()
    elif how == "truncate":
        assert victim.read_bytes() == bytes(range(50))
    else:
        differing = [a ^ b for a, b in zip(victim.read_bytes(), range(100), strict=True) if a != b]
        assert [bin(one).count("1") for one in differing] == [1]
    assert (logdir / "model.ckpt-9.data-00000-of-00001").read_bytes() == bytes(range(100))


def test_a_logdir_without_checkpoints_has_nothing_to_damage(tmp_path: Path) -> None:
    assert newest_files(tmp_path) == []
    assert corrupt_newest(tmp_path, "flip") is None
