"""A new attempt removes the event files of the attempts after its state, and nobody else's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from procsv.base.encoding import encode_json, seal
from procsv.base.identity import TaskId
from procsv.base.journal.entries import Spawned
from procsv.base.journal.file import Journal
from procsv.base.run.manifest import Manifest
from procsv.training.eager.event_files import FILES_MAX, EventFiles

TRAINER = TaskId("trainer", 0)


class Clock:
    now_s = 0.0

    def wall(self) -> float:
        return self.now_s


def next_attempt(tmp_path: Path) -> EventFiles:
    """Return the files of an attempt after 1, 2 and 3, whose pids were 17, 18 and 19."""
    clock: Any = Clock()
    journal = Journal(tmp_path / "journal.jsonl", clock)
    for incarnation, pid, began_s in ((1, 17, 1000.2), (2, 18, 2000.7), (3, 19, 3000.7)):
        clock.now_s = began_s
        journal.append(Spawned(pid=pid), TRAINER, incarnation)
    journal.close()
    events = tmp_path / "events"
    events.mkdir()
    for name in ALL:
        (events / name).touch()
    connection = SimpleNamespace(
        paths=SimpleNamespace(journal=tmp_path / "journal.jsonl"), start=SimpleNamespace(task=TRAINER)
    )
    runtime: Any = SimpleNamespace(connection=connection)
    files = EventFiles(runtime)
    files._own = {"mine": events / "mine"}
    return files


def removed(tmp_path: Path) -> set[str]:
    return set(ALL) - {path.name for path in (tmp_path / "events").iterdir()}


BEFORE = "events.out.tfevents.500.host.19.0.v2"  # another program's, with the pid of a later attempt
LISTED = "events.out.tfevents.2001.host.18.0.v2"
CLOSED = "events.out.tfevents.2002.host.18.1.v2"
BEGUN_AT_ONCE = "events.out.tfevents.2010.host.18.2.v2"
BEGUN_LATER = "events.out.tfevents.2011.host.18.3.v2"
OF_A_LATER_ATTEMPT = "events.out.tfevents.3000.host.19.0.v2"
ALL = [BEFORE, LISTED, CLOSED, BEGUN_AT_ONCE, BEGUN_LATER, OF_A_LATER_ATTEMPT]


def test_only_files_that_were_created_after_the_state_are_removed(tmp_path: Path) -> None:
    files = next_attempt(tmp_path)
    files._state = 2, {LISTED: 0}, 2010.4
    files._cut_back()
    assert removed(tmp_path) == {BEGUN_AT_ONCE, BEGUN_LATER, OF_A_LATER_ATTEMPT}


def test_a_state_with_a_full_list_does_not_show_that_a_file_of_the_same_second_is_newer(tmp_path: Path) -> None:
    files = next_attempt(tmp_path)
    files._state = 2, {LISTED: 0} | {f"{number}": 0 for number in range(FILES_MAX - 1)}, 2010.4
    files._cut_back()
    assert removed(tmp_path) == {BEGUN_LATER, OF_A_LATER_ATTEMPT}


def test_a_checkpoint_without_lengths_leaves_the_files_that_may_be_older(tmp_path: Path) -> None:
    """As one that the program wrote itself because shared memory had no room."""
    save = Manifest(version=1, step=5, sequence=1, incarnation=2, run="r", reason="manual", time=2010.4, files={})
    (tmp_path / "ckpt-5.manifest.json").write_bytes(seal(encode_json(save)))
    next_attempt(tmp_path).restored(str(tmp_path / "ckpt-5"))
    assert removed(tmp_path) == {BEGUN_LATER, OF_A_LATER_ATTEMPT}
