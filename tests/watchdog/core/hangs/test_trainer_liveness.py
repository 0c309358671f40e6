"""When is a trainer called hung: deadlines by phase, the learned step time, and what counts as progress."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest

from procsv.ipc.messaging.launch_settings import HANG_LIMITS_S, LaunchSettings
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.hangs.trainer_liveness import STEPS_KNOWN_MAX, STEPS_KNOWN_MIN, Hang, Liveness, StepTimes
from procsv.watchdog.core.hangs.tree_activity import LOOK_S_MAX


class Trainer:
    """A heartbeat over time, looked at twice a second as the reactor does."""

    def __init__(self, launch: LaunchSettings | None = None, known_s: float = 0.0) -> None:
        self.now_s = 1000.0
        self.liveness = Liveness(launch or LaunchSettings(), StepTimes(known_s))
        self.liveness.start_watch(self.now_s)
        self.beat: Heartbeat | None = None
        self.works = False  # its processes do something
        self.activity = 0

    def starts_again(self) -> Trainer:
        """After an attempt that had a session."""
        self.says(Phase.CONNECT)
        self.beat = None
        self.liveness.start_watch(self.now_s)
        return self

    def says(self, phase: Phase, step: int = -1, work: int = 0, extended_s: float = 0.0) -> Trainer:
        self.beat = Heartbeat(phase, step, work, self.now_s, extended_s)
        self.liveness.read_heartbeat(self.beat, self.now_s)
        return self

    def passes(self, seconds: float, every_s: float = 0.5) -> Hang | None:
        """Time without progress; the hang, as soon as there is one."""
        return self._passes(seconds, every_s, self.liveness.hang)

    def is_suspected_within(self, seconds: float) -> Hang | None:
        return self._passes(seconds, 0.5, self.liveness.suspicion)

    def _passes(self, seconds: float, every_s: float, find: Callable[[float], Hang | None]) -> Hang | None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s = min(until_s, self.now_s + every_s)
            self.activity += self.works
            is_looked_at = self.liveness.wants_activity(self.now_s)
            self.liveness.read_activity(self.activity if is_looked_at else None, self.now_s)
            self.liveness.read_heartbeat(self.beat, self.now_s)
            if (hang := find(self.now_s)) is not None:
                return hang
        return None

    def trains(self, steps: int, step_s: float) -> Trainer:
        self.says(Phase.STEP, 0)
        for step in range(1, steps + 1):
            assert self.passes(step_s) is None
            self.says(Phase.STEP, step, step)
        return self


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


@pytest.mark.parametrize(("phase", "limit_s"), [(Phase.IMPORT, 300.0), (Phase.STOP, 900.0)])
def test_row_56_a_program_without_a_session_is_suspected_when_its_processes_do_nothing_and_never_called_hung(
    phase: Phase, limit_s: float
) -> None:
    trainer = Trainer().says(phase)
    assert trainer.is_suspected_within(limit_s) is None
    trainer.works = True
    assert trainer.is_suspected_within(5000.0) is None
    trainer.works = False
    assert trainer.is_suspected_within(limit_s) is None
    found = trainer.is_suspected_within(2 * LOOK_S_MAX + 1.0)
    assert found is not None
    assert (found.phase, found.limit_s) == (phase, limit_s)
    assert found.seconds > limit_s
    assert trainer.passes(100_000.0, every_s=5.0) is None


def test_row_56_a_start_after_an_attempt_with_a_session_hangs_when_its_processes_do_nothing() -> None:
    trainer = Trainer().starts_again()
    assert trainer.passes(299.0) is None
    trainer.works = True
    assert trainer.passes(5000.0) is None  # it prepares its data, say
    trainer.works = False
    hang = trainer.passes(300.0 + 2 * LOOK_S_MAX + 1.0)
    assert hang is not None
    assert (hang.phase, hang.step) == (Phase.IMPORT, -1)
    assert trainer.is_suspected_within(1000.0) is None


def test_row_56_what_nobody_can_look_at_is_not_suspected() -> None:
    trainer = Trainer()
    for _ in range(1000):
        trainer.now_s += 1.0
        trainer.liveness.read_activity(None, trainer.now_s)
        trainer.liveness.read_heartbeat(None, trainer.now_s)
        assert trainer.liveness.suspicion(trainer.now_s) is None


def test_the_end_of_a_program_that_had_a_session_has_its_deadline() -> None:
    trainer = Trainer().says(Phase.CONNECT).says(Phase.STOP)
    assert trainer.passes(899.0) is None
    hang = trainer.passes(2.0)
    assert hang is not None
    assert (hang.phase, hang.limit_s) == (Phase.STOP, 900.0)


def test_what_a_program_does_without_a_session_has_no_deadline() -> None:
    assert Trainer().says(Phase.IDLE).passes(100_000.0, every_s=5.0) is None


def test_a_server_may_serve_for_ever_as_long_as_its_heartbeat_is_written() -> None:
    server = Trainer()
    for _ in range(1000):
        assert server.says(Phase.SERVE).passes(9.0) is None


@pytest.mark.parametrize(("known_s", "limit_s"), [(0.0, 10.0), (0.1, 10.0), (2.0, 40.0)])
def test_a_server_whose_heartbeat_stops_has_hung(known_s: float, limit_s: float) -> None:
    server = Trainer(known_s=known_s).says(Phase.SERVE)
    assert server.passes(limit_s) is None
    hang = server.passes(1.0)
    assert hang is not None
    assert (hang.phase, hang.limit_s) == (Phase.SERVE, limit_s)
    assert "heartbeat" in hang.told
    assert Trainer(LaunchSettings(hang_timeout_s="off")).says(Phase.SERVE).passes(1000.0) is None


@pytest.mark.parametrize(
    ("step_s", "limit_s"), [(0.01, 120.0), (1.0, 120.0), (10.0, 200.0), (60.0, 1200.0), (100.0, 1800.0)]
)
def test_a_step_may_take_twenty_times_the_median_within_its_bounds(step_s: float, limit_s: float) -> None:
    trainer = Trainer().trains(10, step_s)

    assert trainer.liveness.steps.median_s == pytest.approx(step_s)
    assert trainer.liveness.limit_s(Phase.STEP) == pytest.approx(limit_s)


def test_fast_steps_are_measured_between_two_looks() -> None:
    trainer = Trainer().says(Phase.STEP, 0)
    for look in range(1, 11):
        trainer.passes(0.5)
        trainer.says(Phase.STEP, look * 100)

    assert trainer.liveness.steps.median_s == pytest.approx(0.005)


def test_one_slow_step_among_many_moves_the_limit_little() -> None:
    trainer = Trainer().trains(50, 10.0)
    trainer.trains(1, 190.0)

    assert trainer.liveness.limit_s(Phase.STEP) == pytest.approx(200.0)


def test_the_median_is_that_of_the_steps_measured_last() -> None:
    rng, steps, measured = random.Random(3), StepTimes(), list[float]()
    for count in range(1, 3 * STEPS_KNOWN_MAX):
        measured.append(rng.choice([0.1, 0.2, rng.random()]))
        steps.add_step(measured[-1])
        if count >= STEPS_KNOWN_MIN:
            assert steps.median_s == statistics.median(measured[-STEPS_KNOWN_MAX:])


def test_calls_that_end_are_progress_though_the_step_stands_still() -> None:
    trainer = Trainer().trains(10, 1.0)
    for call in range(100):
        assert trainer.passes(100.0) is None  # an evaluation: each call under the limit, all of them far beyond
        trainer.says(Phase.STEP, 10, 1000 + call)


def test_the_step_time_outlives_the_trainer_and_the_launch() -> None:
    trainer = Trainer().trains(10, 10.0)
    trainer.liveness.start_watch(trainer.now_s)

    assert trainer.liveness.limit_s(Phase.STEP) == pytest.approx(200.0)
    assert Trainer(known_s=10.0).liveness.limit_s(Phase.STEP) == pytest.approx(200.0)


def test_a_new_trainer_owes_nothing_for_the_one_before() -> None:
    trainer = Trainer().trains(10, 1.0)
    assert trainer.passes(119.0) is None
    trainer.beat = None
    trainer.liveness.start_watch(trainer.now_s)

    assert trainer.passes(299.0) is None


def test_the_time_between_the_death_and_the_next_step_is_no_step_time() -> None:
    trainer = Trainer().trains(10, 1.0)
    for phase in (Phase.RESTORE, Phase.COMPILE):
        trainer.says(phase, 10)
        trainer.passes(200.0)
    trainer.trains(10, 1.0)

    assert trainer.liveness.steps.median_s == pytest.approx(1.0)


def test_row_12_extend_pushes_any_deadline_and_never_shortens_one() -> None:
    trainer = Trainer().starts_again()
    trainer.says(Phase.IMPORT, extended_s=trainer.now_s + 5000.0)
    assert trainer.passes(4990.0) is None
    assert trainer.passes(20.0) is not None

    short = Trainer().starts_again()
    short.says(Phase.IMPORT, extended_s=short.now_s + 1.0)
    assert short.passes(299.0) is None


def test_what_the_user_says_a_step_may_take_holds_and_the_first_step_may_take_as_long() -> None:
    limits = LaunchSettings(hang_timeout_s=3600.0)

    assert Trainer(limits).trains(10, 1.0).passes(3500.0, every_s=5.0) is None
    assert Trainer(limits).liveness.limit_s(Phase.COMPILE) == 3600.0
    assert Trainer(LaunchSettings(hang_timeout_s=3.0)).liveness.limit_s(Phase.COMPILE) == HANG_LIMITS_S["compile"]


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


def test_the_median_is_believed_from_the_third_step_on() -> None:
    steps = StepTimes(10.0)
    for seconds, median_s in ((1.0, 10.0), (3.0, 10.0), (2.0, 2.0)):
        steps.add_step(seconds)
        assert steps.median_s == median_s
    assert StepTimes().median_s == 0.0
    assert StepTimes().limit_s == 1800.0


def test_the_median_is_over_the_last_201_steps() -> None:
    steps = StepTimes()
    for seconds in [10.0] * 101 + [1.0] * 201:
        steps.add_step(seconds)
    assert steps.median_s == 1.0
    for _ in range(101):
        steps.add_step(10.0)
    assert steps.median_s == 10.0


def test_a_step_without_a_number_is_measured_by_the_calls_that_ended() -> None:
    trainer = Trainer().says(Phase.STEP, -1, 0)
    for calls in (2, 4, 6):
        trainer.passes(10.0)
        trainer.says(Phase.STEP, -1, calls)
    assert trainer.liveness.steps.median_s == pytest.approx(5.0)


def test_calls_without_a_new_step_are_no_steps_and_their_time_is_that_of_the_next_step() -> None:
    trainer = Trainer().says(Phase.STEP, 0, 0)
    for step in (1, 2, 3):
        for call in (1, 2):
            trainer.passes(10.0)
            trainer.says(Phase.STEP, step - (call == 1), 2 * step + call)
    assert trainer.liveness.steps.median_s == pytest.approx(20.0)


def test_the_time_of_a_save_is_no_step_time() -> None:
    trainer = Trainer().trains(2, 1.0)
    trainer.says(Phase.SAVE, 2, 3)
    trainer.passes(100.0)
    trainer.says(Phase.STEP, 2, 4)
    for step in (3, 4, 5):
        trainer.passes(1.0)
        trainer.says(Phase.STEP, step, step + 2)
    assert trainer.liveness.steps.median_s == pytest.approx(1.0)
    assert max(trainer.liveness.steps._measured) == pytest.approx(1.0)


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


def test_what_a_step_may_take_is_also_what_the_first_one_may_take_and_no_other_phase() -> None:
    limits = LaunchSettings(hang_timeout_s=3600.0)
    assert Trainer(limits).liveness.limit_s(Phase.COMPILE) == 3600.0
    assert Trainer(limits).liveness.limit_s(Phase.RESTORE) == 600.0
    assert Trainer(limits).liveness.limit_s(Phase.STEP) == 3600.0


def test_a_heartbeat_of_ten_seconds_ago_is_no_suspicion_and_an_older_one_is() -> None:
    trainer = Trainer()
    assert not trainer.liveness.is_silent(trainer.now_s + 1000.0), "none was ever read"
    trainer.says(Phase.STEP, 1)
    assert not trainer.liveness.is_silent(trainer.now_s + 10.0)
    assert trainer.liveness.is_silent(trainer.now_s + 10.5)


def test_processes_are_looked_at_only_where_there_is_no_session_and_somebody_wants_to_know_of_hangs() -> None:
    trainer = Trainer()
    assert trainer.liveness.wants_activity(trainer.now_s)
    trainer.liveness.read_activity(1, trainer.now_s)
    assert not trainer.liveness.wants_activity(trainer.now_s + 9.5)
    assert trainer.liveness.wants_activity(trainer.now_s + 10.0)
    trainer.liveness.see_session()
    assert not trainer.liveness.wants_activity(trainer.now_s + 10.0)
    trainer.liveness.start_watch(trainer.now_s)
    assert trainer.liveness.wants_activity(trainer.now_s), "nobody has looked at those of the next one"
    assert not Trainer(LaunchSettings(hang_timeout_s="off")).liveness.wants_activity(trainer.now_s)


def test_a_program_that_had_a_session_is_suspected_of_nothing_and_one_without_is_not_called_hung() -> None:
    before, after = Trainer().says(Phase.IMPORT), Trainer().says(Phase.CONNECT)
    assert before.is_suspected_within(400.0) is not None
    assert before.passes(1000.0) is None
    assert after.is_suspected_within(3000.0) is None
    assert after.passes(1.0) is not None
