"""The journal's entries about hangs, in addition to the sentences of tests/messages.txt."""

from __future__ import annotations

from procsv.base.identity import TRAINER
from procsv.base.outcome import SaveHabit
from procsv.ipc.shm.heartbeat import Phase
from procsv.watchdog.core.actions import WriteEntry
from procsv.watchdog.core.hangs.trainer_liveness import Hang
from procsv.watchdog.core.reporting import wording
from tests.support.journal import an_entry


def test_a_hang_that_is_over_is_journaled_but_is_no_bad_news() -> None:
    journal, said = wording.goes_on(TRAINER, 3, 123.456, 7)
    assert journal == WriteEntry(an_entry("hang_over", seconds=123.5, step=7), TRAINER, 3)
    assert not said.is_bad


def test_a_program_that_does_nothing_is_journaled_as_suspect_and_is_bad_news() -> None:
    journal, said = wording.does_nothing(TRAINER, 3, Hang(Phase.IMPORT, 123.456, 120.0, -1))
    assert journal == WriteEntry(an_entry("hang_suspected", phase="import", seconds=123.5, step=-1), TRAINER, 3)
    assert said.is_bad


def test_a_program_that_procsv_has_not_seen_train_gets_no_promise() -> None:
    assert "beginning" not in wording.resumes(-1, SaveHabit(), was_seen=False)
    assert "beginning" not in wording.greet("1.0", "/run", "", -1, -1)[1]
