"""A program without a session is suspected by its processes' inactivity, and a server by its heartbeat."""

from __future__ import annotations

import pytest

from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.shm.heartbeat import Phase
from procsv.watchdog.core.hangs.trainer_liveness import LOOK_S_MAX
from tests.watchdog.core.hangs.watched import Trainer


@pytest.mark.parametrize(("phase", "limit_s"), [(Phase.IMPORT, 1800.0), (Phase.STOP, 1800.0)])
def test_row_56_a_program_without_a_session_is_suspected_when_its_processes_do_nothing_but_never_called_hung(
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


def test_row_56_a_start_after_an_attempt_with_a_session_is_hung_when_its_processes_do_nothing() -> None:
    trainer = Trainer().starts_again()
    assert trainer.passes(1799.0) is None
    trainer.works = True
    assert trainer.passes(5000.0) is None  # for example, it prepares its data
    trainer.works = False
    hang = trainer.passes(1800.0 + 2 * LOOK_S_MAX + 1.0)
    assert hang is not None
    assert (hang.phase, hang.step) == (Phase.IMPORT, -1)
    assert trainer.is_suspected_within(1000.0) is None


def test_row_56_a_program_that_cannot_be_examined_is_not_suspected() -> None:
    trainer = Trainer()
    for _ in range(1000):
        trainer.now_s += 1.0
        trainer.liveness.read_activity(None, trainer.now_s)
        trainer.liveness.read_heartbeat(None, trainer.now_s)
        assert trainer.liveness.suspicion(trainer.now_s) is None


def test_the_end_of_a_program_that_had_a_session_has_its_deadline() -> None:
    trainer = Trainer().says(Phase.CONNECT).says(Phase.STOP)
    assert trainer.passes(1799.0) is None
    hang = trainer.passes(2 * LOOK_S_MAX + 2.0)
    assert hang is not None
    assert (hang.phase, hang.limit_s) == (Phase.STOP, 1800.0)


def test_a_server_may_serve_forever_while_its_heartbeat_is_written() -> None:
    server = Trainer()
    for _ in range(1000):
        assert server.says(Phase.SERVE).passes(9.0) is None


@pytest.mark.parametrize(("known_s", "limit_s"), [(0.0, 10.0), (0.1, 10.0), (2.0, 40.0)])
def test_a_server_whose_heartbeat_stops_is_hung(known_s: float, limit_s: float) -> None:
    server = Trainer(known_s=known_s).says(Phase.SERVE)
    assert server.passes(limit_s) is None
    hang = server.passes(1.0)
    assert hang is not None
    assert (hang.phase, hang.limit_s) == (Phase.SERVE, limit_s)
    assert "heartbeat" in hang.detail
    assert Trainer(LaunchSettings(hang_timeout_s="off")).says(Phase.SERVE).passes(1000.0) is None


def test_processes_are_examined_only_without_a_session_and_if_hangs_are_watched_for() -> None:
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


def test_a_program_that_had_a_session_is_not_suspected_and_one_without_is_not_called_hung() -> None:
    before, after = Trainer().says(Phase.IMPORT), Trainer().says(Phase.CONNECT)
    assert before.is_suspected_within(1900.0) is not None
    assert before.passes(1000.0) is None
    assert after.is_suspected_within(3000.0) is None
    assert after.passes(1.0) is not None
