"""A member lets its task run while the coordinator is silent, and ends it on request or if no
coordinator comes back.
"""

from __future__ import annotations

import pytest

from procsv.base import exit_codes
from procsv.base.grace import TRAINER_SHARE
from procsv.watchdog.machines.core.member import TRANSITIONS, Act, MemberCore, MemberEvent, MemberState

GRACE_S, PEER_S, COORDINATOR_S = 20.0, 10.0, 300.0


@pytest.fixture
def core() -> MemberCore:
    return MemberCore(GRACE_S, PEER_S, COORDINATOR_S, "n1", 0.0)


def test_silence_is_reported_and_so_is_its_end(core: MemberCore) -> None:
    assert core.check(PEER_S - 0.1) == ()
    assert core.check(PEER_S) == (Act.SAY_ADRIFT,)
    assert core.check(PEER_S + 1.0) == (), "once"
    assert core.handle(MemberEvent.HEARD, PEER_S + 2.0) == (Act.SAY_BACK,)
    assert core.state is MemberState.SERVING


def test_a_missing_coordinator_is_waited_for_only_for_its_time(core: MemberCore) -> None:
    core.check(PEER_S)
    assert core.check(COORDINATOR_S - 0.1) == ()

    assert core.check(COORDINATOR_S) == (Act.ASK_TO_END,)
    assert core.check(COORDINATOR_S + GRACE_S * TRAINER_SHARE) == (Act.KILL,)
    assert core.handle(MemberEvent.TASK_GONE, COORDINATOR_S + GRACE_S) == (Act.LEAVE,)
    assert (core.state, core.exit_code) == (MemberState.GONE, exit_codes.RESUMABLE)
    assert "n1" in core.why


def test_a_signal_is_the_coordinators_business_while_it_is_there(core: MemberCore) -> None:
    assert core.handle(MemberEvent.STOP, 1.0) == (Act.TELL_NOTICE,)
    assert core.state is MemberState.SERVING
    core.handle(MemberEvent.HEARD, 2.0)
    assert core.check(1.0 + GRACE_S) == (Act.KILL,), "it has not ended the run within the grace"


def test_a_signal_ends_the_task_of_a_member_without_a_coordinator(core: MemberCore) -> None:
    core.check(PEER_S)

    assert core.handle(MemberEvent.STOP, PEER_S + 1.0) == (Act.ASK_TO_END,)


@pytest.mark.parametrize("code", [exit_codes.DONE, exit_codes.RESUMABLE, exit_codes.GAVE_UP])
def test_the_end_of_the_run_ends_the_member_with_the_same_code(core: MemberCore, code: int) -> None:
    assert core.told_end(code, 5.0) == (Act.KILL,), "what is left of the task"
    assert core.handle(MemberEvent.TASK_GONE, 5.0) == (Act.LEAVE,)
    assert core.exit_code == code


def test_every_event_has_a_row_in_every_state_except_the_last() -> None:
    living = [state for state in MemberState if state is not MemberState.GONE]
    expected = {(state, event) for state in living for event in MemberEvent if event is not MemberEvent.TASK_GONE}

    assert set(TRANSITIONS) == expected | {(MemberState.LEAVING, MemberEvent.TASK_GONE)}
