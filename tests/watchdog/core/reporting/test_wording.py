"""What the journal is told of starts and hangs, beside the sentences of tests/messages.txt."""

from __future__ import annotations

import pytest

from procsv.base.identity import TRAINER
from procsv.base.outcome import SaveHabit
from procsv.ipc.messaging.watchdog_messages import FirstStepDone
from procsv.ipc.shm.heartbeat import Phase
from procsv.watchdog.core.actions import Journal
from procsv.watchdog.core.hangs.trainer_liveness import Hang
from procsv.watchdog.core.reporting import wording


@pytest.mark.parametrize(("death_s", "seconds"), [(100.0, 12.346), (112.4, 0.0), (112.3, 0.046)])
def test_a_recovery_is_journaled_with_its_seconds_to_the_millisecond(death_s: float, seconds: float) -> None:
    first = FirstStepDone(840, "checkpoint", "model.ckpt-840", 841, 112.3456)
    assert wording.recovered_fields(first, death_s) == {
        "step": 840,
        "source": "checkpoint",
        "from": "model.ckpt-840",
        "seconds": seconds,
    }


def test_a_restart_is_journaled_with_its_delay_and_a_reason_if_it_has_one() -> None:
    assert wording.restarting_fields(1.23456, 5, "") == {"delay": 1.235, "lost_steps": 5}
    assert wording.restarting_fields(0.0, 0, "by hand") == {"delay": 0.0, "lost_steps": 0, "why": "by hand"}
    assert wording.restarting_fields(0.0, 0, "", 11.4) == {"delay": 0.0, "lost_steps": 0, "lost_seconds": 11.4}


def test_a_hang_that_is_over_is_journaled_and_is_no_bad_news() -> None:
    journal, said = wording.goes_on(TRAINER, 3, 123.456, 7)
    assert journal == Journal("hang_over", TRAINER, 3, {"seconds": 123.5, "step": 7})
    assert not said.is_bad


def test_a_program_that_does_nothing_is_journaled_as_a_suspicion_and_is_bad_news() -> None:
    journal, said = wording.does_nothing(TRAINER, 3, Hang(Phase.IMPORT, 123.456, 120.0, -1))
    assert journal == Journal("hang_suspected", TRAINER, 3, {"phase": "import", "seconds": 123.5, "step": -1})
    assert said.is_bad


def test_of_a_program_that_procsv_has_not_seen_train_nothing_is_promised() -> None:
    assert "beginning" not in wording.resumes(-1, SaveHabit(), was_seen=False)
    assert "beginning" not in wording.greet("1.0", "/run", "", -1, -1)[1]
