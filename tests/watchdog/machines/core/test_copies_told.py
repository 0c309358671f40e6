"""The chief learns of each of its snapshots that another machine has copied."""

from __future__ import annotations

from procsv.base.cluster import CHIEF
from procsv.base.identity import TaskId
from procsv.ipc.messaging.watchdog_messages import CopyKept
from procsv.watchdog.core import events
from procsv.watchdog.core.actions import Action, Tell
from tests.watchdog.played import KILLED, Played

WORKER = TaskId("worker", 0)


def told(out: list[Action]) -> list[Action]:
    return [action for action in out if isinstance(action, Tell) and isinstance(action.body, CopyKept)]


def test_only_the_chief_learns_of_a_copy() -> None:
    played = Played(tasks=(CHIEF, WORKER))
    assert told(played.tell(events.Forwarded(CHIEF, CopyKept(7)))) == [Tell(CHIEF, CopyKept(7))]


def test_a_dead_chief_gets_no_message() -> None:
    played = Played(tasks=(CHIEF, WORKER))
    played.end(CHIEF, KILLED)
    assert not told(played.tell(events.Forwarded(CHIEF, CopyKept(7))))
