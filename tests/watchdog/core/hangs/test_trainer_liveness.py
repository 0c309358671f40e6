"""A trainer hangs when its phase's deadline passes without progress. Progress and extensions move the deadline."""

from __future__ import annotations

import math

import pytest

from procsv.ipc.messaging.launch_settings import HANG_LIMITS_S, LaunchSettings
from procsv.ipc.shm.heartbeat import Phase
from procsv.watchdog.core.hangs.trainer_liveness import LOOK_S_MAX, Hang
from tests.watchdog.core.hangs.watched import Trainer, far


@pytest.mark.parametrize(
    ("phase", "limit_s"),
    [
        (Phase.CONNECT, 1800.0),
        (Phase.RESTORE, 1800.0),
        (Phase.COMPILE, 1800.0),
        (Phase.SAVE, 1800.0),
        (Phase.STEP, 1800.0),  # nothing is known of its steps yet
    ],
)
def test_row_12_each_phase_has_its_deadline_and_is_left_alone_below_it(phase: Phase, limit_s: float) -> None:
    trainer = far().says(phase)

    assert trainer.passes(limit_s - 0.6) is None
    hang = trainer.passes(1.5)
    assert hang is not None
    assert (hang.phase, hang.limit_s) == (phase, limit_s)
    assert hang.seconds > limit_s


def test_row_12_extend_pushes_any_deadline_and_never_shortens_one() -> None:
    trainer = Trainer().starts_again()
    trainer.says(Phase.IMPORT, extended_s=trainer.now_s + 5000.0)
    assert trainer.passes(4990.0) is None
    assert trainer.passes(40.0) is not None

    short = Trainer().starts_again()
    short.says(Phase.IMPORT, extended_s=short.now_s + 1.0)
    assert short.passes(1799.0) is None


def test_off_is_off() -> None:
    assert far(LaunchSettings(hang_timeout_s="off")).says(Phase.STEP, 3).passes(100_000.0, every_s=5.0) is None


def test_a_trainer_that_was_only_slow_gets_twice_the_time_at_the_next_attempt_until_it_progresses() -> None:
    trainer = far().trains(10, 1.0)
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


def test_a_limit_set_by_the_user_is_not_doubled() -> None:
    trainer = far(LaunchSettings(hang_timeout_s=3.0)).trains(2, 1.0)
    hang = trainer.passes(10.0)
    assert hang is not None
    trainer.liveness.count_hang(hang)

    assert trainer.liveness.limit_s(Phase.STEP) == 3.0


@pytest.mark.parametrize("limit_s", [3.0, 120.0])
def test_time_without_observation_does_not_count(limit_s: float) -> None:
    """The watchdog was stopped, or the machine: the trainer gets its chance to show progress."""
    trainer = far(LaunchSettings(hang_timeout_s=limit_s)).trains(10, 1.0)
    trainer.now_s += 100_000.0
    trainer.liveness.read_heartbeat(trainer.beat, trainer.now_s)

    assert trainer.liveness.hang(trainer.now_s) is None
    assert trainer.passes(121.0) is not None


def test_a_stopped_heartbeat_is_suspect_and_nothing_more() -> None:
    trainer = far().trains(10, 1.0)
    assert trainer.passes(9.0) is None
    assert not trainer.liveness.is_silent(trainer.now_s)

    assert trainer.passes(60.0) is None
    assert trainer.liveness.is_silent(trainer.now_s)


def test_every_phase_has_a_limit() -> None:
    assert set(HANG_LIMITS_S) == {
        phase.name.lower() for phase in set(Phase) - {Phase.STEP, Phase.IDLE, Phase.SERVE}
    } | {"service"}
    assert all(far().liveness.limit_s(phase) > 0 for phase in Phase)
    assert math.isinf(far().liveness.limit_s(Phase.IDLE))


# -- limits, just below and just above ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("phase", "limit_s"),
    [(Phase.CONNECT, 1800.0), (Phase.RESTORE, 1800.0), (Phase.COMPILE, 1800.0), (Phase.SAVE, 1800.0)],
)
def test_a_phase_may_take_exactly_its_limit_and_no_longer(phase: Phase, limit_s: float) -> None:
    trainer = far().says(phase, 7)
    assert trainer.passes(limit_s) is None
    assert trainer.passes(0.5) == Hang(phase, limit_s + 0.5, limit_s, 7)


def test_a_start_that_reported_only_its_session_gets_the_time_of_an_import() -> None:
    trainer = far()
    trainer.liveness.see_session()
    assert trainer.passes(1800.0) is None
    assert trainer.passes(0.5) == Hang(Phase.IMPORT, 1800.5, 1800.0, -1)


def test_an_unreadable_heartbeat_is_neither_progress_nor_another_phase() -> None:
    trainer = far().says(Phase.RESTORE, 7)
    trainer.beat = None
    assert trainer.passes(1800.0) is None
    assert trainer.passes(0.5) == Hang(Phase.RESTORE, 1800.5, 1800.0, 7)


def test_five_seconds_of_a_pause_between_two_looks_count_and_none_of_a_stopped_clock() -> None:
    trainer = far().says(Phase.RESTORE)
    assert trainer.passes(1795.0) is None
    trainer.liveness.read_heartbeat(trainer.beat, trainer.now_s - 1.0)
    trainer.liveness.read_heartbeat(trainer.beat, trainer.now_s)
    trainer.liveness.read_heartbeat(trainer.beat, trainer.now_s)
    trainer.now_s += 60.0
    trainer.liveness.read_heartbeat(trainer.beat, trainer.now_s)
    hang = trainer.liveness.hang(trainer.now_s)
    assert hang is not None
    assert hang.seconds == 1801.0, "1795 s, a second that was looked at twice, and 5 s"


def test_extend_lasts_until_its_very_end() -> None:
    trainer = far().says(Phase.RESTORE, extended_s=3000.0)
    assert trainer.passes(2000.0) is None
    assert trainer.now_s == 3000.0
    assert trainer.passes(0.5) is not None


@pytest.mark.parametrize(
    ("hangs", "limit_s"), [(0, 1800.0), (1, 3600.0), (2, 7200.0), (10, 1843200.0), (12, 1843200.0)]
)
def test_a_limit_is_doubled_at_most_ten_times_and_only_for_the_phase_that_hung(hangs: int, limit_s: float) -> None:
    liveness = far().liveness
    for _ in range(hangs):
        liveness.count_hang(Hang(Phase.RESTORE, 1801.0, 1800.0, -1))
    assert liveness.limit_s(Phase.RESTORE) == limit_s
    assert liveness.limit_s(Phase.CONNECT) == 1800.0


def test_the_first_step_beyond_the_highest_one_that_hung_resets_the_limit() -> None:
    trainer = far().says(Phase.STEP, -1, 0)
    trainer.liveness.count_hang(Hang(Phase.RESTORE, 1801.0, 1800.0, -1))
    trainer.says(Phase.STEP, 0, 1)
    assert trainer.liveness.limit_s(Phase.RESTORE) == 1800.0
    for step in (20, 10):
        trainer.liveness.count_hang(Hang(Phase.RESTORE, 1801.0, 1800.0, step))
    for step, limit_s in ((20, 7200.0), (21, 1800.0)):
        trainer.says(Phase.STEP, step, step)
        assert trainer.liveness.limit_s(Phase.RESTORE) == limit_s


@pytest.mark.parametrize("phase", [Phase.COMPILE, Phase.RESTORE])
def test_a_limit_set_by_the_user_may_be_short(phase: Phase) -> None:
    limits = LaunchSettings(hang_limits_s={"compile": 0.25, "restore": 0.25})
    assert far(limits).liveness.limit_s(phase) == 0.25


def test_a_heartbeat_ten_seconds_old_is_no_suspicion_and_an_older_one_is() -> None:
    trainer = far()
    assert not trainer.liveness.is_silent(trainer.now_s + 1000.0), "none was ever read"
    trainer.says(Phase.STEP, 1)
    assert not trainer.liveness.is_silent(trainer.now_s + 10.0)
    assert trainer.liveness.is_silent(trainer.now_s + 10.5)


# -- steps and other calls ---------------------------------------------------------------------------------------
LOOKS_S = 2 * LOOK_S_MAX + 1.0  # between the limit and the look that finds it
NOT_A_STEP = [
    (Phase.PROGRAM, True),  # a callback, an evaluation, between two fits, a cell of a notebook
    (Phase.STEP, False),  # between two calls of a session, or of `step()`
    (Phase.CONNECT, True),
    (Phase.RESTORE, True),
    (Phase.COMPILE, True),  # a replay, too
    (Phase.SAVE, True),
    (Phase.STOP, True),
]


@pytest.mark.parametrize(("phase", "in_step"), NOT_A_STEP)
def test_a_non_step_gets_half_an_hour_however_short_the_steps_and_no_limit_while_a_process_works(
    phase: Phase, in_step: bool
) -> None:
    trainer = Trainer().trains(20, 0.02).says(phase, 20, 20, in_step=in_step)
    assert trainer.passes(1800.0) is None, "it waits for another program, say"
    trainer.says(phase, 20, 21, in_step=in_step)
    trainer.works = True
    assert trainer.passes(20_000.0, every_s=5.0) is None
    trainer.works = False
    assert trainer.passes(1800.0) is None
    hang = trainer.passes(LOOKS_S)
    assert hang is not None
    assert hang.phase is (phase if in_step else Phase.PROGRAM)
    assert hang.limit_s == 1800.0


def test_a_step_under_way_keeps_its_learned_limit_though_threads_run() -> None:
    trainer = Trainer().trains(20, 0.02)
    trainer.works = True
    assert trainer.passes(120.0) is None
    hang = trainer.passes(0.5)
    assert hang is not None
    assert (hang.phase, hang.limit_s) == (Phase.STEP, 120.0)


def test_the_users_step_limit_applies_from_step_to_step_if_nothing_tells_them_apart() -> None:
    trainer = Trainer(LaunchSettings(hang_timeout_s=3.0)).trains(2, 1.0).says(Phase.STEP, 2, 3, in_step=False)
    trainer.works = True
    hang = trainer.passes(4.0)
    assert hang is not None
    assert (hang.phase, hang.limit_s) == (Phase.STEP, 3.0)
    fit = Trainer(LaunchSettings(hang_timeout_s=3.0)).trains(2, 1.0).says(Phase.PROGRAM, 2, 3)
    assert fit.passes(1800.0) is None, "a callback is no step"


def test_processes_are_examined_in_training_only_while_a_callback_takes_its_time() -> None:
    trainer = Trainer().trains(20, 0.02)
    trainer.says(Phase.PROGRAM, 20, 20)
    assert not trainer.liveness.wants_activity(trainer.now_s)
    trainer.passes(9.5)
    assert not trainer.liveness.wants_activity(trainer.now_s)
    trainer.is_near = False
    trainer.passes(1.0)
    assert trainer.liveness.wants_activity(trainer.now_s)
    trainer.says(Phase.STEP, 21, 21)
    trainer.passes(60.0)
    assert not trainer.liveness.wants_activity(trainer.now_s)


def test_steps_between_callbacks_are_measured_and_other_work_is_not() -> None:
    trainer = Trainer().trains(1, 0.5)
    for step in range(2, 8):
        trainer.says(Phase.PROGRAM, step - 1, step - 1)
        trainer.passes(9.5)
        trainer.says(Phase.STEP, step, step)
        trainer.passes(0.5)
    assert trainer.liveness.steps.median_s == pytest.approx(10.0)
    saves = Trainer().says(Phase.PROGRAM, 0)  # a program of which only saves are visible
    for step in range(1, 8):
        saves.passes(9.5)
        saves.says(Phase.PROGRAM, step, step)
    assert saves.liveness.steps.median_s == saves.liveness.calls.median_s == 0.0


# -- wrong limits ------------------------------------------------------------------------------------------------
def hung_and_started_again(phase: Phase = Phase.PROGRAM) -> Trainer:
    """Return a trainer whose previous attempt hung in `phase` after step 2."""
    trainer = Trainer().trains(2, 1.0).says(phase, 2, 2)
    hang = trainer.passes(1800.0 + LOOKS_S)
    assert hang is not None
    trainer.liveness.count_hang(hang)
    trainer.liveness.start_watch(trainer.now_s)
    return trainer.trains(2, 1.0).says(phase, 2, 2)


def test_a_limit_proved_too_short_stays_doubled_with_one_message() -> None:
    trainer = hung_and_started_again()
    assert trainer.passes(2000.0) is None
    assert trainer.liveness.take_too_short() is None, "nobody knows yet whether it goes on"
    trainer.says(Phase.STEP, 3, 3)
    news = trainer.liveness.take_too_short()
    assert news is not None
    assert (news.phase, news.limit_s, news.new_limit_s) == (Phase.PROGRAM, 1800.0, 3600.0)
    assert news.took_s > 1900.0
    assert trainer.liveness.take_too_short() is None
    for step in (4, 5):  # at the end of each epoch
        trainer.says(Phase.PROGRAM, step, step)
        assert trainer.passes(3500.0) is None
        trainer.says(Phase.STEP, step + 1, step + 1)
    assert trainer.liveness.take_too_short() is None
    assert trainer.liveness.limit_s(Phase.COMPILE) == 1800.0, "of another phase nothing is known"


def test_a_correct_limit_is_restored_once_the_program_continues() -> None:
    trainer = hung_and_started_again()
    assert trainer.passes(100.0) is None
    trainer.says(Phase.STEP, 3, 3)
    assert trainer.liveness.take_too_short() is None
    assert trainer.liveness.limit_s(Phase.PROGRAM) == 1800.0


def test_a_step_with_a_given_limit_never_proves_it_too_short() -> None:
    trainer = Trainer(LaunchSettings(hang_timeout_s=3.0)).trains(2, 1.0)
    hang = trainer.passes(10.0)
    assert hang is not None
    trainer.liveness.count_hang(hang)
    trainer.liveness.start_watch(trainer.now_s)
    trainer.trains(2, 2.9)
    assert trainer.liveness.take_too_short() is None
