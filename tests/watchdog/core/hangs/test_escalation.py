"""One hanging process is dumped, aborted and killed in steps, and each step is reported."""

from __future__ import annotations

import signal

import pytest

from procsv.base.identity import CHECKPOINT, TRAINER
from procsv.base.outcome import Exit
from procsv.base.signals import DUMP_SIGNAL, MAIN_DUMP_SIGNAL
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.actions import Say, Signal, WriteEntry
from procsv.watchdog.core.hangs.escalation import HangEscalation
from procsv.watchdog.core.hangs.service_liveness import ServiceLiveness
from procsv.watchdog.core.hangs.trainer_liveness import Hang, Liveness, StepTimes
from tests.support.journal import an_entry
from tests.support.naming import Naming

BEAT = Heartbeat(Phase.RESTORE, 7, 0, 1000.0, 0.0)
NEXT = Heartbeat(Phase.RESTORE, 7, 1, 1700.0, 0.0)
FOUND_S = 1605.0  # the first look after the 600 s of a restore
STACK = 'Thread 0x1 (most recent call first):\n  File "/home/me/train.py", line 41 in one_step\n'
WHAT = (" 10 min 5 s in phase restore, ", " 10 min 0 s")


def watched() -> HangEscalation[Liveness]:
    launch = LaunchSettings(hang_limits_s={"restore": 600.0})
    escalation = HangEscalation(TRAINER, Liveness(launch, StepTimes()), launch)
    escalation.start_watch(1000.0)
    return escalation


def look(escalation: HangEscalation[Liveness], from_s: float, to_s: float, is_stopped: bool = False) -> list[float]:
    """Look every five seconds. Return when the hang was found."""
    return [
        float(now_s)
        for now_s in range(int(from_s), int(to_s) + 1, 5)
        if escalation.is_found(BEAT, is_stopped, float(now_s))
    ]


def found(is_stopped: bool = False) -> HangEscalation[Liveness]:
    escalation = watched()
    assert look(escalation, 1000.0, FOUND_S, is_stopped) == [FOUND_S]
    return escalation


def escalated(is_stopped: bool = False) -> HangEscalation[Liveness]:
    escalation = found(is_stopped)
    escalation.start_escalation(3, FOUND_S)
    return escalation


def climb(escalation: HangEscalation[Liveness], now_s: float) -> tuple[list[int], bool]:
    """Return the signals to send, and whether to kill it."""
    signals = escalation.climb(3, now_s)
    numbers = [one.number for one in signals if isinstance(one, Signal)]
    assert signals == [Signal(TRAINER, 3, number) for number in numbers]
    return numbers, escalation.is_to_be_killed(now_s)


def test_a_hang_is_found_once_and_only_in_a_watched_process() -> None:
    assert look(found(), FOUND_S, 3000.0) == []
    launch = LaunchSettings()
    assert look(HangEscalation(TRAINER, Liveness(launch, StepTimes()), launch), 1000.0, 3000.0) == []
    asked_to_stop = watched()
    asked_to_stop.end_watch()
    assert look(asked_to_stop, 1000.0, 3000.0) == []


def test_a_hang_is_journaled_reported_and_asks_for_the_main_threads_stack() -> None:
    assert found().start_escalation(3, FOUND_S) == [
        WriteEntry(an_entry("hang_detected", phase="restore", seconds=605.0, step=7), TRAINER, 3),
        Say(Naming("trainer 3 hangs: ", *WHAT), is_bad=True),
        Signal(TRAINER, 3, MAIN_DUMP_SIGNAL),
    ]


def test_the_journal_has_seconds_with_one_decimal() -> None:
    escalation = watched()
    escalation.hang = Hang(Phase.STEP, 123.456, 120.0, 7)
    assert escalation.report_hang(3, FOUND_S, "left alone") == [
        WriteEntry(an_entry("hang_detected", phase="step", seconds=123.5, step=7), TRAINER, 3),
        Say(Naming("trainer 3", " 2 min 3 s ", "phase step, ", " 2 min 0 s; left alone"), is_bad=True),
    ]


def test_a_service_is_named_as_a_service_with_its_details() -> None:
    launch = LaunchSettings()
    escalation = HangEscalation(CHECKPOINT, ServiceLiveness(launch), launch)
    escalation.hang = Hang(Phase.IDLE, 61.0, 60.0, 7, "no news")
    assert escalation.report_hang(2, 1000.0, "ending it")[1:] == [
        Say(Naming("checkpoint service", ": no news; "), is_bad=True)
    ]
    escalation.was_stopped = True
    assert escalation.evidence(Exit(None, signal.SIGKILL), "") == Naming("no news, ", "SIGSTOP", "SIGKILL")


def test_a_process_is_asked_for_all_stacks_then_aborted_after_five_seconds_and_killed_after_ten_more() -> None:
    escalation = escalated()
    assert escalation.next_due_s() == FOUND_S + 2.5
    assert climb(escalation, FOUND_S + 2.4) == ([], False)
    assert climb(escalation, FOUND_S + 2.5) == ([DUMP_SIGNAL], False)
    assert escalation.next_due_s() == FOUND_S + 5.0
    assert climb(escalation, FOUND_S + 4.9) == ([], False)
    assert climb(escalation, FOUND_S + 5.0) == ([signal.SIGABRT, signal.SIGCONT], False)
    assert escalation.next_due_s() == FOUND_S + 15.0
    assert climb(escalation, FOUND_S + 14.9) == ([], False)
    assert climb(escalation, FOUND_S + 15.0) == ([], True)
    assert escalation.next_due_s() is None
    assert climb(escalation, FOUND_S + 100.0) == ([], False), "once"


@pytest.mark.parametrize("after_s", [0.0, 2.5, 5.0])
def test_a_process_that_is_dead_or_asked_to_stop_leaves_the_ladder(after_s: float) -> None:
    for leave in (HangEscalation.end_watch, lambda one: one.start_watch(2000.0)):
        escalation = escalated()
        climb(escalation, FOUND_S + after_s)
        leave(escalation)
        assert escalation.next_due_s() is None
        assert climb(escalation, 3000.0) == ([], False)


def test_the_next_attempt_gets_twice_the_time_but_not_after_a_freeze() -> None:
    assert escalated().liveness.limit_s(Phase.RESTORE) == 1200.0
    frozen = found(is_stopped=True)
    said = frozen.start_escalation(3, FOUND_S)[1:]
    assert said == [Say(Naming("trainer 3", *WHAT, "SIGSTOP"), is_bad=True)], "and it is not asked for its stacks"
    assert frozen.liveness.limit_s(Phase.RESTORE) == 600.0
    assert frozen.next_due_s() == FOUND_S + 5.0


def test_a_frozen_process_is_woken_to_dump_its_stacks_and_to_die() -> None:
    frozen = escalated(is_stopped=True)
    numbers = [MAIN_DUMP_SIGNAL, DUMP_SIGNAL, signal.SIGABRT, signal.SIGCONT]
    assert climb(frozen, FOUND_S + 5.0) == (numbers, False)


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGKILL, DUMP_SIGNAL, MAIN_DUMP_SIGNAL])
def test_a_death_by_our_signals_is_a_death_by_the_hang(number: int) -> None:
    exit = Exit(None, number)
    for escalation in (found(), escalated()):
        assert escalation.evidence(exit, "") == Naming(*WHAT, str(exit))
        assert escalation.evidence(exit, STACK) == Naming(*WHAT, "one_step (/home/me/train.py:41)", str(exit))
    assert watched().evidence(exit, STACK) == ""


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS])
def test_a_crash_after_the_request_for_all_stacks_is_due_to_the_hang_and_an_earlier_one_is_not(number: int) -> None:
    exit = Exit(None, number)
    escalation = escalated()
    assert escalation.evidence(exit, "") == ""
    climb(escalation, FOUND_S + 2.5)
    assert escalation.evidence(exit, "") == Naming(*WHAT, str(exit))
    assert found().evidence(exit, "") == ""
    escalation.start_watch(2000.0)
    assert escalation.evidence(exit, "") == ""
    assert look(escalation, 2000.0, 3205.0) == [3205.0]
    assert escalation.evidence(exit, "") == ""


@pytest.mark.parametrize("exit", [Exit(0, None), Exit(1, None), Exit(None, signal.SIGTERM)])
def test_a_process_that_ends_by_itself_after_all_has_not_died_of_its_hang(exit: Exit) -> None:
    assert escalated().evidence(exit, STACK) == ""


def test_a_hang_is_named_by_its_phase_and_its_place() -> None:
    assert watched().name_failure(STACK) == ""
    name = found().name_failure("")
    assert name.endswith("phase restore")
    assert found().name_failure(STACK) == f"{name}, in one_step (/home/me/train.py:41)"


def test_a_process_left_alone_continues_once_and_is_watched_again() -> None:
    escalation = found()
    escalation.report_hang(3, FOUND_S, "left alone")
    assert escalation.goes_on(BEAT, FOUND_S + 5.0) is None
    assert escalation.stood_still_s(FOUND_S + 5.0) == 610.0
    assert escalation.goes_on(NEXT, 1700.0) == 700.0
    assert escalation.goes_on(NEXT, 1705.0) is None
    assert escalation.stood_still_s(1705.0) == 0.0
    assert not escalation.is_found(NEXT, False, 1705.0)


def test_an_unwatched_or_healthy_process_reports_no_recovery() -> None:
    assert watched().goes_on(NEXT, 1001.0) is None
    escalation = found()
    escalation.report_hang(3, FOUND_S, "left alone")
    escalation.end_watch()
    assert escalation.goes_on(NEXT, 1700.0) is None


def test_time_in_disk_wait_counts_unless_it_is_reported() -> None:
    launch = LaunchSettings()
    beat = Heartbeat(Phase.SAVE, 10, 0, 0.0, 0.0, moved=1)
    for told, is_found in (((), True), ((False,), True), ((True,), False)):
        escalation = HangEscalation(CHECKPOINT, ServiceLiveness(launch), launch)
        escalation.start_watch(1000.0)
        seen = [escalation.is_found(beat, False, float(now_s), *told) for now_s in range(1000, 1070, 5)]
        assert any(seen) is is_found
