"""One standby and its messages: each deadline just below and just above, and what is reported and journaled."""

from __future__ import annotations

import signal

import pytest

from procsv.base.identity import STANDBY, TRAINER, TaskId
from procsv.base.outcome import Exit
from procsv.ipc.messaging.fd_messages import Waiting
from procsv.watchdog.core.actions import KillTree, Say, Signal, StartAttempt, WriteEntry
from procsv.watchdog.core.events import Ended
from procsv.watchdog.host.standby import (
    MakeStandby,
    NotPromoted,
    Promote,
    Promoted,
    Standby,
    StandbySaid,
    StandbyState,
    Todo,
)
from tests.support.journal import an_entry
from tests.support.naming import Naming
from tests.watchdog.world import KILLED

ROOM = 2**30
CRASHED = Exit(None, signal.SIGSEGV)


def importing(mode: str = "warm", now_s: float = 1000.0) -> Standby:
    standby = Standby(mode, [])
    standby.loaded(0.0)
    standby.check_deadlines(now_s, ROOM)
    standby.pid = 77
    return standby


def waiting(mode: str = "warm") -> Standby:
    standby = importing(mode)
    standby.said(StandbySaid(1, Waiting(2000, 2.5)), 1010.0)
    return standby


def promoting() -> Standby:
    standby = waiting()
    standby.start_of(TRAINER, 4, 1020.0)
    return standby


def ended(exit: Exit, number: int = 1) -> Ended:
    return Ended(STANDBY, number, exit)


def last(standby: Standby) -> Todo:
    return standby.out[-1]


def test_a_wanted_standby_is_due_at_once_and_started_if_there_is_memory() -> None:
    standby = Standby("warm", [])
    assert (standby.pid, standby.next_due_s()) == (0, None)
    assert not standby.is_due(1000.0)
    standby.loaded(0.0)
    assert standby.next_due_s() == 0.0
    assert standby.is_due(0.0)
    standby.check_deadlines(1000.0, None)
    assert standby.state is StandbyState.ABSENT, "nobody has looked whether there is room"
    standby.check_deadlines(1000.0, ROOM)
    assert (standby.out, standby.number, standby.state.word) == ([MakeStandby(1, "warm")], 1, "importing")
    assert standby.next_due_s() is None
    assert not standby.is_due(1e6)


def test_without_memory_it_is_checked_again_after_a_minute_and_reported_once_each_time_memory_gets_short() -> None:
    standby = Standby("warm", [])
    standby.loaded(0.0)
    standby.check_deadlines(1000.0, ROOM - 1)
    short = Say(Naming("no standby", " 1.0 GiB ", " 1024.0 MiB "))
    assert (standby.out, standby.number) == ([short], 0)
    assert standby.next_due_s() == 1060.0
    standby.check_deadlines(1059.9, ROOM)
    assert standby.number == 0
    standby.check_deadlines(1060.0, 0)
    assert standby.out == [short]
    standby.check_deadlines(1120.0, ROOM)
    assert standby.number == 1
    standby.died(ended(KILLED), 1130.0)
    standby.out.clear()
    standby.check_deadlines(1131.0, ROOM - 1)
    assert standby.out == [short]


def test_a_waiting_standby_is_journaled_and_another_ones_messages_are_not() -> None:
    standby = importing()
    standby.said(StandbySaid(2, Waiting(2000, 2.5)), 1010.0)
    assert not standby.is_ready
    standby.said(StandbySaid(1, Waiting(2000, 2.5)), 1010.0)
    assert standby.is_ready is True
    ready = {"pid": 77, "modules": 2000, "seconds": 2.5}
    assert last(standby) == WriteEntry(an_entry("standby_ready", **ready), STANDBY, 1)
    made = list(standby.out)
    assert standby.start_of(TRAINER, 4, 1020.0) == Promote(1, TRAINER, 4)
    standby.said(StandbySaid(1, Waiting(2000, 2.5)), 1020.0)
    assert (standby.out, standby.state) == (made, StandbyState.PROMOTING), "it is too late to say so"


def test_a_standby_becomes_the_process_it_was_promoted_to_and_no_other() -> None:
    standby = waiting()
    assert not standby.is_becoming(TRAINER, 0)
    standby.start_of(TRAINER, 4, 1020.0)
    assert standby.is_becoming(TRAINER, 4)
    assert not standby.is_becoming(TRAINER, 3)
    assert not standby.is_becoming(TaskId("trainer", 1), 4)
    standby.promoted(Promoted(1, TRAINER, 4, 77), 1020.1)
    assert not standby.is_becoming(TRAINER, 4)
    assert (standby.state, standby.pid, standby.next_due_s()) == (StandbyState.ABSENT, 0, 0.0)


def test_a_standby_that_was_forked_waits_on_without_a_deadline() -> None:
    standby = promoting()
    standby.promoted(Promoted(1, TRAINER, 4, 99, is_fork=True), 1020.1)
    assert not standby.is_becoming(TRAINER, 4)
    assert (standby.state, standby.pid, standby.next_due_s()) == (StandbyState.WAITING, 77, None)
    assert standby.start_of(TRAINER, 5, 1021.0) == Promote(1, TRAINER, 5)


def test_a_fork_that_comes_when_the_run_has_begun_to_end_leaves_no_standby() -> None:
    standby = promoting()
    standby.unwanted(1020.05, "the run ends")
    standby.out.clear()
    standby.promoted(Promoted(1, TRAINER, 4, 99, is_fork=True), 1020.1)
    assert (standby.out, standby.state) == ([Signal(STANDBY, 1, signal.SIGTERM)], StandbyState.LEAVING)


def test_a_standby_that_is_no_longer_needed_cleans_up_within_5_s_of_the_last_tasks_end() -> None:
    standby = waiting()
    standby.out.clear()
    standby.unwanted(1020.0, "the run ends")
    assert (standby.out, standby.next_due_s()) == ([Signal(STANDBY, 1, signal.SIGTERM)], None)
    standby.no_task_runs(1030.0)
    standby.no_task_runs(1034.0)
    assert standby.next_due_s() == 1035.0
    standby.check_deadlines(1034.9, None)
    assert len(standby.out) == 1
    standby.check_deadlines(1035.0, None)
    assert standby.out[1:] == [KillTree(STANDBY, 1)]
    standby.died(ended(KILLED), 1035.1)
    assert standby.out[2:] == [_exited("stopped", "SIGKILL, sent by procsv: the run ends", KILLED)]
    assert standby.next_due_s() is None


def test_a_standby_that_has_cleaned_up_has_ended_as_requested() -> None:
    standby = waiting()
    standby.unwanted(1020.0, "the run ends")
    standby.out.clear()
    standby.died(ended(Exit(None, signal.SIGTERM)), 1020.1)
    assert standby.out == [_exited("stopped", Naming("SIGTERM"), Exit(None, signal.SIGTERM))]


def test_while_it_is_needed_a_tasks_end_sets_no_deadline() -> None:
    standby = waiting()
    standby.no_task_runs(1020.0)
    assert standby.next_due_s() is None


@pytest.mark.parametrize(("mode", "said"), [("warm", 1), ("hot", 0)])
def test_a_warm_standby_that_cannot_be_forked_is_reported_once(mode: str, said: int) -> None:
    standby = importing(mode)
    for number in (1, 2):
        standby.said(StandbySaid(number, Waiting(2000, 2.5, "it runs a thread")), 1010.0)
        standby.died(ended(KILLED, number), 1011.0)
        standby.check_deadlines(2000.0, ROOM)
    assert standby.out.count(Say(Naming("(it runs a thread)"))) == said


@pytest.mark.parametrize(("mode", "wait_s"), [("warm", 30.0), ("hot", 0.0), ("off", 0.0)])
def test_a_start_waits_for_a_warm_standby_that_imports_or_is_being_forked(mode: str, wait_s: float) -> None:
    standby = importing(mode)
    assert standby.wait_s == 10 * wait_s, "of the first trainer, whose own imports would take as long"
    standby.start_of(TRAINER, 3, 1005.0)
    standby = importing(mode) if mode == "hot" else standby  # a cold start ends a hot one
    assert standby.wait_s == wait_s
    standby.said(StandbySaid(1, Waiting(2000, 2.5)), 1010.0) if mode != "off" else None
    assert standby.wait_s == 0.0
    if mode != "off":
        standby.start_of(TRAINER, 4, 1020.0)
        assert standby.wait_s == wait_s
    assert Standby(mode, []).wait_s == 0.0


def test_an_importing_standby_learns_once_a_second_that_a_task_waits_for_it() -> None:
    standby = importing()
    told = [Signal(STANDBY, 1, signal.SIGURG)]
    before = len(standby.out)
    for now_s in (1000.0, 1000.9):
        standby.expedite_import(now_s)
    assert standby.out[before:] == told
    standby.expedite_import(1001.0)
    assert standby.out[before:] == 2 * told
    standby.said(StandbySaid(1, Waiting(2000, 2.5)), 1010.0)
    before = len(standby.out)
    standby.expedite_import(1011.0)
    assert not standby.out[before:]


def test_a_standby_that_does_not_answer_within_five_seconds_is_killed_as_the_process_it_was_to_become() -> None:
    standby = promoting()
    standby.trainer_died()
    assert standby.next_due_s() == 1025.0
    standby.out.clear()
    standby.check_deadlines(1024.9, None)
    assert standby.out == []
    standby.check_deadlines(1025.0, None)
    assert standby.out == [KillTree(TRAINER, 4)]
    assert standby.next_due_s() is None
    standby.check_deadlines(1026.0, None)
    assert standby.out == [KillTree(TRAINER, 4)], "once"
    standby.died(ended(KILLED), 1026.0)
    assert standby.out[1:] == [
        _exited("stopped", Naming("SIGKILL", " 5.0 s"), KILLED),
        Say(Naming("standby ended (SIGKILL)", "starts cold"), is_bad=True),
    ]
    assert (standby.state, standby.pid) == (StandbyState.ABSENT, 0)


def test_a_standby_that_answers_in_time_has_no_deadline_any_more() -> None:
    standby = promoting()
    standby.trainer_died()
    standby.promoted(Promoted(1, TRAINER, 4, 77), 1024.0)
    standby.check_deadlines(2000.0, None)
    assert KillTree(TRAINER, 4) not in standby.out
    assert standby.next_due_s() is None


def test_a_standby_that_cannot_be_reached_is_killed_with_a_message() -> None:
    standby = promoting()
    standby.out.clear()
    standby.not_promoted(NotPromoted(TRAINER, 4, "Broken pipe"), 1020.0)
    assert standby.out == [
        KillTree(STANDBY, 1),
        Say(Naming("(Broken pipe)", "starts cold"), is_bad=True),
    ]
    standby.check_deadlines(2000.0, None)
    assert len(standby.out) == 2, "it has no deadline any more"
    standby.died(ended(KILLED), 2000.0)
    assert standby.out[2:] == [_exited("stopped", "SIGKILL, sent by procsv: Broken pipe", KILLED)]


def test_a_cold_start_leaves_a_warm_standby_alone_and_ends_a_hot_one() -> None:
    warm, hot = importing("warm"), importing("hot")
    for standby in (warm, hot):
        standby.out.clear()
        assert standby.start_of(TRAINER, 2, 1001.0) == StartAttempt(TRAINER, 2)
    assert (warm.out, warm.state) == ([], StandbyState.IMPORTING)
    assert (hot.out, hot.state) == ([KillTree(STANDBY, 1)], StandbyState.LEAVING)
    hot.unwanted(1002.0, "the run ends")
    hot.died(ended(KILLED), 1003.0)
    assert hot.out[1:] == [_exited("stopped", Naming("trainer was started"), KILLED)], "the first reason counts"


def test_after_an_unwanted_standby_the_next_may_die_for_its_own_reasons() -> None:
    standby = importing("hot")
    standby.start_of(TRAINER, 2, 1001.0)
    standby.died(ended(KILLED), 1002.0)
    standby.loaded(0.0)
    standby.check_deadlines(1003.0, ROOM)
    standby.out.clear()
    standby.died(ended(KILLED, 2), 1004.0)
    assert standby.out == [_exited("killed", "SIGKILL, sender unknown", KILLED, 2, pid=0)]


def test_off_is_never_wanted_and_an_unwanted_standby_is_not_due() -> None:
    off, warm = Standby("off", []), importing()
    off.loaded(0.0)
    assert not off.is_due(1e6)
    warm.died(ended(KILLED), 1000.0)
    assert warm.next_due_s() == 1001.0
    assert not warm.is_due(1000.9)
    assert warm.is_due(1001.0)
    warm.trainer_died()
    assert (warm.is_due(2000.0), warm.next_due_s()) == (False, None)
    warm.loaded(0.0)
    warm.unwanted(1001.0, "the run ends")
    assert (warm.is_due(2000.0), warm.next_due_s()) == (False, None)


def test_the_delay_after_a_death_grows_to_a_quarter_of_an_hour_and_the_fourth_death_is_reported() -> None:
    standby, delays_s, said = importing(), [], []
    for number in range(1, 14):
        standby.out.clear()
        standby.died(ended(CRASHED, number), 2000.0)
        said.append(len([action for action in standby.out if isinstance(action, Say)]))
        due_s = standby.next_due_s()
        assert due_s is not None
        delays_s.append(due_s - 2000.0)
        standby.check_deadlines(due_s, ROOM)
    assert delays_s == [1.0, 4.0, 16.0, 64.0, 256.0, *[900.0] * 8]
    assert said == [0, 0, 0, 1, *[0] * 9]


def test_the_fourth_death_names_its_log_and_a_standby_asked_to_leave_reports_nothing() -> None:
    again, leaving = importing(), importing()
    for standby in (again, leaving):
        for number in range(1, 4):
            standby.died(ended(CRASHED, number), 1000.0 + number)
            standby.check_deadlines(1100.0, ROOM)
            standby.pid = 77
        standby.out.clear()
    leaving.unwanted(1101.0, "the run ends")
    leaving.died(ended(CRASHED, 4), 1102.0)
    assert not [action for action in leaving.out if isinstance(action, Say)]
    again.died(ended(CRASHED, 4), 1102.0)
    assert again.out == [
        _exited("crashed", "SIGSEGV", CRASHED, 4),
        Say(Naming("(SIGSEGV), ", " procsv/logs/standby.4.log; "), is_bad=True),
    ]


@pytest.mark.parametrize(("now_s", "delay_s"), [(4599.9, 4.0), (4600.0, 1.0)])
def test_a_death_of_an_hour_ago_is_forgotten(now_s: float, delay_s: float) -> None:
    standby = importing()
    standby.died(ended(KILLED), 1000.0)
    standby.check_deadlines(1001.0, ROOM)
    standby.died(ended(KILLED, 2), now_s)
    assert standby.next_due_s() == pytest.approx(now_s + delay_s)


def test_a_standby_that_the_system_cannot_start_waits_as_after_a_death() -> None:
    standby = importing()
    standby.not_spawned(1000.0)
    assert standby.next_due_s() == 1001.0


@pytest.mark.parametrize(
    ("mode", "is_waiting", "exit", "becomes"),
    [
        ("hot", False, Exit(0, None), "warm"),
        ("hot", False, Exit(3, None), "warm"),
        ("hot", False, KILLED, "hot"),
        ("hot", True, Exit(0, None), "hot"),
        ("warm", False, Exit(0, None), "warm"),
    ],
)
def test_only_a_hot_standby_that_ends_by_itself_before_its_session_is_followed_by_a_warm_one(
    mode: str, is_waiting: bool, exit: Exit, becomes: str
) -> None:
    standby = waiting(mode) if is_waiting else importing(mode)
    standby.died(ended(exit), 1020.0)
    assert standby.mode == becomes
    said = [action for action in standby.out if isinstance(action, Say)]
    if mode == becomes:
        assert said == []
        return
    assert said == [Say(Naming("no hot standby: ", f"({exit})", " procsv/logs/standby.1.log; "), is_bad=True)]


def test_a_standby_that_ends_with_75_unasked_was_not_stopped() -> None:
    standby = importing()
    standby.died(ended(Exit(75, None)), 1001.0)
    assert last(standby) == _exited("exit-code", Naming("exit code 75: "), Exit(75, None))


def _exited(cause: str, evidence: str, exit: Exit, number: int = 1, pid: int = 77) -> WriteEntry:
    fields = {
        "pid": pid,
        "code": exit.code,
        "signal": exit.signal_name,
        "cause": cause,
        "step": -1,
        "evidence": evidence,
    }
    return WriteEntry(an_entry("exited", **fields), STANDBY, number)
