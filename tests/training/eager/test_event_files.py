"""A new attempt removes the event files of the attempts after its state, and nobody else's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from procsv.base.identity import TaskId
from procsv.base.journal.entries import Spawned
from procsv.base.journal.file import Journal
from procsv.training.eager.event_files import EventFiles

TRAINER = TaskId("trainer", 0)


class Clock:
    now_s = 0.0

    def wall(self) -> float:
        return self.now_s


def test_a_file_of_another_program_with_the_number_of_a_later_attempts_process_stays(tmp_path: Path) -> None:
    clock: Any = Clock()
    journal = Journal(tmp_path / "journal.jsonl", clock)
    for incarnation, pid, began_s in ((1, 17, 1000.2), (2, 18, 2000.7), (3, 19, 3000.7)):
        clock.now_s = began_s
        journal.append(Spawned(pid=pid), TRAINER, incarnation)
    journal.close()
    events = tmp_path / "events"
    events.mkdir()
    names = {
        "before it": "events.out.tfevents.500.host.19.0.v2",
        "of the state": "events.out.tfevents.2001.host.18.0.v2",
        "of a later attempt": "events.out.tfevents.3000.host.19.0.v2",
    }
    for name in names.values():
        (events / name).touch()
    connection = SimpleNamespace(
        paths=SimpleNamespace(journal=tmp_path / "journal.jsonl"), start=SimpleNamespace(task=TRAINER)
    )
    runtime: Any = SimpleNamespace(connection=connection)
    files = EventFiles(runtime)
    files._own = {"mine": events / "mine"}
    files._state = 2, {names["of the state"]: 0}
    files._cut_back()
    assert sorted(path.name for path in events.iterdir()) == sorted([names["before it"], names["of the state"]])
