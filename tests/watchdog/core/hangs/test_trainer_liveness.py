"""A hang of a trainer: deadlines by phase, what pushes them, and what counts as progress."""

from __future__ import annotations

import math

import pytest

from procsv.ipc.messaging.launch_settings import HANG_LIMITS_S, LaunchSettings
from procsv.ipc.shm.heartbeat import Phase
from procsv.watchdog.core.hangs.trainer_liveness import Hang
from tests.watchdog.core.hangs.watched import Trainer


@pytest.mark.parametrize(
    ("phase", "limit_s"),
    [
        (Phase.CONNECT, 1800.0),
        (Phase.RESTORE, 600.0),
        (Phase.COMPILE, 1800.0),
        (Phase.SAVE, 900.0),
        (Phase.STEP, 1800.0),  # nothing is known of its steps yet
    ],
)
def test_row_12_each_phase_has_its_deadline_and_is_left_alone_below_it(phase: Phase, limit_s: float) -> None:
    trainer = Trainer().says(phase)

    assert trainer.passes(limit_s - 0.6) is None
    hang = trainer.passes(1.5)
    assert hang is not None
    assert (hang.phase, hang.limit_s) == (phase, limit_s)
    assert hang.seconds > limit_s


def test_row_12_extend_pushes_any_deadline_and_never_shortens_one() -> None:
    trainer = Trainer().starts_again()
    trainer.says(Phase.IMPORT, extended_s=trainer.now_s + 5000.0)
    assert trainer.passes(4990.0) is None
    assert trainer.passes(20.0) is not None

    short = Trainer().starts_again()
    short.says(Phase.IMPORT, extended_s=short.now_s + 1.0)
    assert short.passes(299.0) is None


def test_off_is_off() -> None:
    assert Trainer(LaunchSettings(hang_timeout_s="off")).says(Phase.STEP, 3).passes(100_000.0, every_s=5.0) is None


def test_a_trainer_that_was_only_slow_gets_twice_the_time_at_the_next_try_until_it_gets_on() -> None:
    trainer = Trainer().trains(10, 1.0)
    limits_s = []
    for _ in range(6):
        hang = trainer.passes(5000.0)
        assert hang is not None
        trainer.liveness.count_hang(hang)
        limits_s.append(hang.limit_s)
        trainer.liveness.start_watch(trainer.now_s)
        trainer.says(Phase.STEP, 10)
    assert limits_s == [120.0, 240.0, 480.0, 960.0, 1800.0, 1800.0]

    trainer.says(Phase.STEP, 10)
    trainer.passes(1.0)
    trainer.says(Phase.STEP, 11)
    assert trainer.liveness.limit_s(Phase.STEP) == 120.0


def test_what_the_user_has_said_is_not_doubled() -> None:
    trainer = Trainer(LaunchSettings(hang_timeout_s=3.0)).trains(2, 1.0)
    hang = trainer.passes(10.0)
    assert hang is not None
    trainer.liveness.count_hang(hang)

    assert trainer.liveness.limit_s(Phase.STEP) == 3.0


def test_time_in_which_nobody_looked_does_not_count() -> None:
    """The watchdog was stopped, or the machine: the trainer gets its chance to show progress."""
    trainer = Trainer().trains(10, 1.0)
    trainer.now_s += 100_000.0
    trainer.liveness.read_heartbeat(trainer.beat, trainer.now_s)

    assert trainer.liveness.hang(trainer.now_s) is None
    assert trainer.passes(121.0) is not None


def test_a_heartbeat_that_stops_is_suspect_and_nothing_more() -> None:
    trainer = Trainer().trains(10, 1.0)
    assert trainer.passes(9.0) is None
    assert not trainer.liveness.is_silent(trainer.now_s)

    assert trainer.passes(60.0) is None
    assert trainer.liveness.is_silent(trainer.now_s)


def test_every_phase_has_a_limit() -> None:
    assert set(HANG_LIMITS_S) == {
        phase.name.lower() for phase in set(Phase) - {Phase.STEP, Phase.IDLE, Phase.SERVE}
    } | {"service"}
    assert all(Trainer().liveness.limit_s(phase) > 0 for phase in Phase)
    assert math.isinf(Trainer().liveness.limit_s(Phase.IDLE))


# -- just below and just above -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("phase", "limit_s"),
    [(Phase.CONNECT, 1800.0), (Phase.RESTORE, 600.0), (Phase.COMPILE, 1800.0), (Phase.SAVE, 900.0)],
)
def test_a_phase_may_take_just_its_limit_and_no_longer(phase: Phase, limit_s: float) -> None:
    trainer = Trainer().says(phase, 7)
    assert trainer.passes(limit_s) is None
    assert trainer.passes(0.5) == Hang(phase, limit_s + 0.5, limit_s, 7)


def test_a_start_that_said_nothing_but_that_it_has_a_session_has_the_time_of_an_import() -> None:
    trainer = Trainer()
    trainer.liveness.see_session()
    assert trainer.passes(300.0) is None
    assert trainer.passes(0.5) == Hang(Phase.IMPORT, 300.5, 300.0, -1)


def test_a_heartbeat_that_cannot_be_read_is_no_progress_and_no_other_phase() -> None:
    trainer = Trainer().says(Phase.RESTORE, 7)
    trainer.beat = None
    assert trainer.passes(600.0) is None
    assert trainer.passes(0.5) == Hang(Phase.RESTORE, 600.5, 600.0, 7)


def test_of_a_pause_between_two_looks_five_seconds_count_and_of_a_clock_that_stands_none() -> None:
    trainer = Trainer().says(Phase.RESTORE)
    assert trainer.passes(595.0) is None
    trainer.liveness.read_heartbeat(trainer.beat, trainer.now_s - 1.0)
    trainer.liveness.read_heartbeat(trainer.beat, trainer.now_s)
    trainer.liveness.read_heartbeat(trainer.beat, trainer.now_s)
    trainer.now_s += 60.0
    trainer.liveness.read_heartbeat(trainer.beat, trainer.now_s)
    hang = trainer.liveness.hang(trainer.now_s)
    assert hang is not None
    assert hang.seconds == 601.0, "595 s, a second that was looked at twice, and 5 s"


def test_extend_holds_up_to_its_very_end() -> None:
    trainer = Trainer().says(Phase.RESTORE, extended_s=2000.0)
    assert trainer.passes(1000.0) is None
    assert trainer.now_s == 2000.0
    assert trainer.passes(0.5) is not None


@pytest.mark.parametrize(("hangs", "limit_s"), [(0, 600.0), (1, 1200.0), (2, 2400.0), (10, 614400.0), (12, 614400.0)])
def test_a_limit_is_doubled_ten_times_at_most_and_only_that_of_the_phase_that_hung(hangs: int, limit_s: float) -> None:
    liveness = Trainer().liveness
    for _ in range(hangs):
        liveness.count_hang(Hang(Phase.RESTORE, 601.0, 600.0, -1))
    assert liveness.limit_s(Phase.RESTORE) == limit_s
    assert liveness.limit_s(Phase.CONNECT) == 1800.0


def test_the_first_step_beyond_the_highest_one_that_hung_forgives() -> None:
    trainer = Trainer().says(Phase.STEP, -1, 0)
    trainer.liveness.count_hang(Hang(Phase.RESTORE, 601.0, 600.0, -1))
    trainer.says(Phase.STEP, 0, 1)
    assert trainer.liveness.limit_s(Phase.RESTORE) == 600.0
    for step in (20, 10):
        trainer.liveness.count_hang(Hang(Phase.RESTORE, 601.0, 600.0, step))
    for step, limit_s in ((20, 2400.0), (21, 600.0)):
        trainer.says(Phase.STEP, step, step)
        assert trainer.liveness.limit_s(Phase.RESTORE) == limit_s


@pytest.mark.parametrize("phase", [Phase.COMPILE, Phase.RESTORE])
def test_a_limit_that_the_user_has_set_may_be_a_short_one(phase: Phase) -> None:
    limits = LaunchSettings(hang_limits_s={"compile": 0.25, "restore": 0.25})
    assert Trainer(limits).liveness.limit_s(phase) == 0.25


def test_a_heartbeat_of_ten_seconds_ago_is_no_suspicion_and_an_older_one_is() -> None:
    trainer = Trainer()
    assert not trainer.liveness.is_silent(trainer.now_s + 1000.0), "none was ever read"
    trainer.says(Phase.STEP, 1)
    assert not trainer.liveness.is_silent(trainer.now_s + 10.0)
    assert trainer.liveness.is_silent(trainer.now_s + 10.5)
