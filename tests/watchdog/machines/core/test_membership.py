"""The members of a run on several machines are known, with the lost ones and the state of their clocks."""

from __future__ import annotations

import pytest

from procsv.base.identity import TaskId
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.machines.core.membership import Member, Membership, OtherClock
from tests.support.naming import Naming

WORKER, PS = TaskId("worker", 0), TaskId("ps", 0)
SAME = ("0.1", "train.py")
TIMEOUT_S = 10.0


@pytest.fixture
def members() -> Membership:
    return Membership((WORKER, PS), TIMEOUT_S)


def lost_until(members: Membership, since_s: float, until_s: float) -> list[TaskId]:
    """Return the members found lost by checks as frequent as the coordinator's."""
    looks = [since_s + 0.5 * number for number in range(int(2 * (until_s - since_s)) + 1)]
    return [member.task for now_s in looks for member in members.newly_lost(now_s)]


def _member(task: TaskId = WORKER, number: int = 1, heard_s: float = 0.0) -> Member:
    return Member(number, task, f"n{number}", "", 7, heard_s)


def test_the_missing_members_are_known_until_all_have_joined(members: Membership) -> None:
    members.join(_member(PS, 2))
    assert members.missing == (WORKER,)
    members.join(_member())
    assert not members.missing


@pytest.mark.parametrize(
    ("number", "task", "theirs", "why"),
    [
        (3, TaskId("worker", 1), SAME, Naming("worker.1", "worker.0, ps.0")),
        (3, PS, SAME, Naming("ps.0 is hosted by n2")),
        (2, WORKER, SAME, Naming("worker.0", "ps.0")),
        (1, WORKER, ("0.2", "train.py"), Naming(" 0.1, ", " 0.2")),
        (1, WORKER, ("0.1", "other.py"), Naming(" train.py, ", " other.py")),
    ],
)
def test_a_launch_that_does_not_belong_is_refused_with_the_reason(
    members: Membership, number: int, task: TaskId, theirs: tuple[str, str], why: Naming
) -> None:
    members.join(_member(PS, 2))

    assert members.why_refused(number, task, SAME, theirs) == why


def test_a_member_that_asks_twice_is_the_same_one(members: Membership) -> None:
    members.join(_member())

    assert members.why_refused(1, WORKER, SAME, SAME) == ""


def test_a_place_that_another_launch_has_is_taken_and_ones_own_is_not(members: Membership) -> None:
    members.join(_member(WORKER, 1))

    assert members.is_taken(2, WORKER)
    assert not members.is_taken(1, WORKER)
    assert not members.is_taken(2, PS)
    assert members.is_taken(3, TaskId("spare", 0)), "it has become a task's"


def test_silence_for_the_timeout_loses_a_member_once_and_for_all(members: Membership) -> None:
    members.join(_member(heard_s=0.0))
    members.join(_member(PS, 2, heard_s=5.0))
    assert members.next_due_s() == TIMEOUT_S
    assert members.newly_lost(TIMEOUT_S - 0.1) == []

    assert [member.task for member in members.newly_lost(TIMEOUT_S)] == [WORKER]

    assert members.newly_lost(TIMEOUT_S + 1.0) == []
    assert members.next_due_s() == 5.0 + TIMEOUT_S


def test_a_coordinator_that_was_frozen_receives_older_messages_before_it_declares_anyone_lost(
    members: Membership,
) -> None:
    members.join(_member(heard_s=0.0))
    members.join(_member(PS, 2, heard_s=0.0))
    assert lost_until(members, 0.0, 1.0) == []
    awake_s = 2 * TIMEOUT_S
    assert members.newly_lost(awake_s) == [], "nothing that they have sent was received yet"
    members.heard(members.by_task[PS], awake_s + 0.5)

    assert lost_until(members, awake_s + 0.5, awake_s + 5.0) == [WORKER]


def test_a_coordinator_that_freezes_repeatedly_still_loses_silent_members(
    members: Membership,
) -> None:
    members.join(_member(heard_s=0.0))
    members.join(_member(PS, 2, heard_s=0.0))
    assert lost_until(members, 0.0, 1.0) == []
    awake_s, again_s = 2 * TIMEOUT_S, 3 * TIMEOUT_S
    assert members.newly_lost(awake_s) == []
    members.heard(members.by_task[PS], again_s)

    assert [lost.task for lost in members.newly_lost(again_s)] == [WORKER]


def test_a_member_that_joins_later_than_the_others_is_lost_by_its_own_time(members: Membership) -> None:
    members.join(_member(PS, 2, heard_s=100.0))
    assert not members.newly_lost(100.0)

    members.join(_member(WORKER, 1, heard_s=95.0))

    assert lost_until(members, 100.5, 95.0 + TIMEOUT_S) == [WORKER]
    assert lost_until(members, 95.5 + TIMEOUT_S, 100.0 + TIMEOUT_S) == [PS]
    assert members.find(1) is members.by_task[WORKER]


def test_spare_launches_replace_lost_ones_as_long_as_there_are_any() -> None:
    spares = TaskId("spare", 0), TaskId("spare", 1)
    members = Membership((WORKER, PS, *spares), TIMEOUT_S)
    for number, task in enumerate((PS, WORKER, *reversed(spares)), 1):
        members.join(_member(task, number))

    def places() -> dict[str, int] | None:
        moves = members.next_hosts()
        return None if moves is None else {str(task): member.number for task, member in moves.items()}

    assert places() == {"ps.0": 1, "worker.0": 2, "spare.0": 4, "spare.1": 3}
    members.by_task[WORKER].is_lost = True
    assert places() == {"ps.0": 1, "worker.0": 4, "spare.1": 3}
    members.by_task[spares[0]].is_lost = True
    assert places() == {"ps.0": 1, "worker.0": 3}
    members.by_task[PS].is_leaving = True  # its machine is about to end: as good as lost
    assert places() is None


def test_a_spare_launch_that_has_taken_a_task_is_not_waited_for_under_its_own_name() -> None:
    spares = TaskId("spare", 0), TaskId("spare", 1)
    members = Membership((WORKER, PS, *spares), TIMEOUT_S)
    members.join(_member(PS, 2))
    assert set(members.missing) == {WORKER, *spares}

    members.join(_member(WORKER, 4))  # originally spare.1

    assert set(members.missing) == {spares[0]}


def test_heartbeats_are_converted_to_our_clock_by_the_fastest_message() -> None:
    member = _member()
    for sent_s, heard_s in ((100.0, 1100.5), (101.0, 1101.1), (102.0, 1102.9)):
        member.clock.see(sent_s, heard_s)

    beat = member.put_on_our_clock(Heartbeat(Phase.STEP, 5, 5, 102.0, 0.0))

    assert beat is not None
    assert beat.beat_s == pytest.approx(1102.1, abs=0.01)
    assert beat.extended_s == 0.0, "nothing was extended, by no clock"


def test_clocks_that_drift_apart_for_weeks_make_no_beat_look_old() -> None:
    clock, drift = OtherClock(), 1e-4
    for theirs_s in range(0, 14 * 86_400, 60):
        clock.see(theirs_s, theirs_s * (1.0 + drift) + 0.001)

    assert clock.here(14 * 86_400.0) == pytest.approx(14 * 86_400.0 * (1.0 + drift), abs=0.1)


def test_a_clock_that_stopped_with_its_machine_is_known_again_within_some_beats() -> None:
    clock, stopped_s = OtherClock(), 8.0
    for theirs_s in range(0, 60, 2):
        clock.see(theirs_s, theirs_s + 1000.001)

    for theirs_s in range(60, 84, 2):
        clock.see(theirs_s, theirs_s + stopped_s + 1000.001)

    assert clock.here(84.0) == pytest.approx(84.0 + stopped_s + 1000.001), "else each of its heartbeats looks 8 s old"


def test_a_delayed_message_does_not_make_earlier_ones_look_later() -> None:
    clock = OtherClock()
    for theirs_s in range(0, 60, 2):
        clock.see(theirs_s, theirs_s + 1000.001)

    clock.see(60.0, 60.0 + 1003.0)

    assert clock.here(60.0) == pytest.approx(1060.001)
