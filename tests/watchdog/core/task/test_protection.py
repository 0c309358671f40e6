"""Whether a program's state is being saved is known early, and a problem is reported once."""

from __future__ import annotations

import pytest

from procsv.base.identity import TRAINER
from procsv.base.outcome import NO_STEP, SaveHabit
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.shm.heartbeat import Heartbeat, Phase, Snapshots, Spacing
from procsv.watchdog.core.actions import Action, Say, WriteEntry
from procsv.watchdog.core.task.protection import Protection
from tests.support.journal import an_entry
from tests.support.naming import Naming

BEGUN = Naming("session has begun")


def beat(phase: Phase = Phase.IMPORT, step: int = -1, spacing: Spacing = Spacing.NONE) -> Heartbeat:
    return Heartbeat(phase, step, 0, 0.0, 0.0, Snapshots(spacing))


def started(*beats: Heartbeat) -> Protection:
    """Return a program's protection, started at 100 s, after these beats."""
    made = Protection(LaunchSettings())
    made.start_attempt(100.0)
    for seen in beats:
        made.see(seen)
    return made


def warned(watched: Protection, now_s: float) -> list[Action]:
    return watched.warn(TRAINER, 3, now_s)


def test_a_program_without_a_session_for_60_seconds_is_reported_unprotected_once() -> None:
    watched = started(beat())

    assert warned(watched, 159.9) == []
    journal, said = warned(watched, 160.0)
    assert journal == WriteEntry(an_entry("unprotected", seconds=60.0), TRAINER, 3)
    assert isinstance(said, Say)
    assert said.is_bad
    assert " 1 min 0 s" in said.text
    assert warned(watched, 500.0) == []


def test_the_journal_has_a_tenth_of_a_second() -> None:
    journal, _ = warned(started(), 175.26)
    assert journal == WriteEntry(an_entry("unprotected", seconds=75.3), TRAINER, 3)


def test_the_time_counts_from_the_launchs_first_attempt() -> None:
    watched = started()
    watched.start_attempt(150.0)
    assert warned(watched, 160.0)


def test_nothing_is_reported_before_there_was_an_attempt() -> None:
    assert warned(Protection(LaunchSettings()), 1e6) == []


@pytest.mark.parametrize(
    ("seen", "has_session"),
    [
        (beat(), False),
        (beat(Phase.STOP), False),
        (beat(Phase.RESTORE), True),
        (beat(Phase.STEP), True),
        (beat(step=0), True),
        (beat(spacing=Spacing.OFF), True),
    ],
)
def test_a_session_is_recognized_by_its_phase_steps_or_snapshots_and_never_forgotten(
    seen: Heartbeat, has_session: bool
) -> None:
    watched = started(seen, beat())

    assert watched.has_session is has_session
    assert bool(warned(watched, 1000.0)) is not has_session


@pytest.mark.parametrize(
    ("beats", "while_it_runs", "after_its_end"),
    [
        ([], None, False),
        ([beat()], None, False),
        ([beat(Phase.RESTORE)], None, False),
        ([beat(Phase.STEP)], False, False),
        ([beat(Phase.STEP), beat(Phase.COMPILE)], False, False),
        ([beat(spacing=Spacing.TOLD)], True, True),
        ([beat(spacing=Spacing.TOLD), beat()], True, True),
        ([beat(Phase.STEP, 7, Spacing.TOLD)], True, True),
        ([beat(Phase.STEP, 7), beat(Phase.STEP, 8, Spacing.TOLD)], True, True),
    ],
)
def test_a_program_is_protected_once_it_takes_snapshots_and_is_not_if_it_trains_without(
    beats: list[Heartbeat], while_it_runs: bool | None, after_its_end: bool
) -> None:
    assert started(*beats).is_protected(is_over=False) is while_it_runs
    assert started(*beats).is_protected(is_over=True) is after_its_end


def test_a_program_reported_unprotected_is_protected_once_it_takes_snapshots_and_that_is_reported_once() -> None:
    watched = started()
    warned(watched, 160.0)
    assert watched.is_protected(is_over=False) is False
    assert watched.see(beat(Phase.COMPILE)) is None
    assert watched.is_protected(is_over=False) is False

    assert watched.see(beat(Phase.STEP, 7, Spacing.TOLD)) == Say(BEGUN)
    assert watched.is_protected(is_over=False) is True
    assert watched.see(beat(Phase.STEP, 8, Spacing.TOLD)) is None


def test_a_program_whose_state_is_saved_in_time_gets_no_message() -> None:
    assert started().see(beat(Phase.STEP, 7, Spacing.TOLD)) is None


def test_a_server_whose_variables_another_process_saves_gets_no_warning_and_is_not_unprotected() -> None:
    watched = started(beat(Phase.SERVE))
    assert not warned(watched, 160.0)
    assert watched.is_protected(is_over=False) is None
    assert watched.is_protected(is_over=True) is None


def test_a_start_that_restores_nothing_of_what_was_saved_is_reported_once_and_is_not_protected() -> None:
    watched = started(beat(Phase.COMPILE, spacing=Spacing.OFF))
    assert watched.see_first_step(TRAINER, 1, SaveHabit("save", None), NO_STEP) == []
    assert watched.is_protected(False) is None, "it had nothing to restore, and did not look for anything"

    journal, said = watched.see_first_step(TRAINER, 2, SaveHabit("save", False), 3)
    assert journal == WriteEntry(an_entry("not_restored", step=3), TRAINER, 2)
    assert isinstance(said, Say)
    assert said.is_bad
    assert "save 3" in said.text
    assert watched.is_protected(False) is False
    assert watched.see_first_step(TRAINER, 3, SaveHabit("save", False), 3) == []

    assert watched.see_first_step(TRAINER, 4, SaveHabit("save", True), 3) == []
    assert watched.is_protected(False) is True
