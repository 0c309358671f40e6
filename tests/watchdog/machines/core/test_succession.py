"""Two living launches never have one place: a newcomer gets it at once only if the earlier one is
certainly dead.
"""

from __future__ import annotations

import msgspec
import pytest

from procsv.base.identity import TaskId
from procsv.ipc.messaging.member_messages import Join, LaunchLock, Served
from procsv.watchdog.machines.core.membership import Claim, Member, judge_claim

WORKER, SPARE = TaskId("worker", 0), TaskId("spare", 0)
HERE, THERE = "boot-1:8:77", "boot-2:8:77"
LOCK = LaunchLock(HERE, 10.0)


def member(lock: LaunchLock | None = LOCK, task: TaskId = WORKER) -> Member:
    return Member(1, task, "n2", "n2:2222", 7, 0.0, launch="first", lock=lock)


def join(lock: LaunchLock | None, address: str = "n2:2222", launch: str = "second", pid: int = 8) -> Join:
    return Join(WORKER, "n2", address, "0.1", ("train.py",), pid, launch=launch, lock=lock)


def test_a_later_holder_of_the_same_directorys_lock_replaces_a_dead_launch() -> None:
    assert judge_claim(member(), join(LaunchLock(HERE, 11.0))) is Claim.SUCCEEDS


def test_a_task_at_another_address_can_continue_only_if_all_restart() -> None:
    assert judge_claim(member(), join(LaunchLock(HERE, 11.0), "n2:3333")) is Claim.BEGINS


@pytest.mark.parametrize(
    ("had", "has"),
    [
        (LaunchLock(HERE, 10.0), LaunchLock(HERE, 9.0)),  # the earlier launch's message comes late
        (LaunchLock(HERE, 10.0), LaunchLock(THERE, 11.0)),  # another machine, or this one before a reboot
        (LaunchLock(HERE, 10.0), None),  # a filesystem without locks
        (None, LaunchLock(HERE, 11.0)),
        (None, None),
    ],
)
def test_without_proof_that_the_earlier_launch_is_dead_the_newcomer_waits(
    had: LaunchLock | None, has: LaunchLock | None
) -> None:
    assert judge_claim(member(had), join(has)) is Claim.WAITS


def test_a_launch_is_recognized_only_by_its_own_name() -> None:
    assert judge_claim(member(), join(LaunchLock(HERE, 10.0), launch="first")) is Claim.AGAIN
    assert judge_claim(member(None), join(None, pid=7)) is Claim.WAITS, (
        "in another container it may have the same number"
    )


def test_a_place_that_another_launch_has_or_that_does_not_exist_is_gone() -> None:
    taken = member(task=SPARE)
    assert judge_claim(taken, join(LaunchLock(HERE, 11.0))) is Claim.GONE
    assert judge_claim(None, join(LaunchLock(HERE, 11.0))) is Claim.GONE


def test_a_lost_launch_that_comes_back_with_what_it_runs_has_been_replaced() -> None:
    back = msgspec.structs.replace(join(None), served=Served("{}", None))

    assert judge_claim(member(), back) is Claim.GONE
    assert judge_claim(member(), msgspec.structs.replace(back, launch="first")) is Claim.AGAIN


def test_a_place_already_lost_is_available_only_in_the_next_start_of_the_run() -> None:
    lost, waiting = member(), member()
    lost.is_lost, waiting.is_waiting = True, True

    assert judge_claim(lost, join(LaunchLock(HERE, 11.0))) is Claim.WAITS
    assert judge_claim(waiting, join(LaunchLock(HERE, 11.0))) is Claim.WAITS
