"""Checkpoints of other savers are found, adopted when they are stable, and otherwise left alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from procsv.base.identity import TRAINER
from procsv.base.run.manifest import FileSum
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan, Durable, UserSave
from procsv.ipc.messaging.endpoint import Received
from procsv.services.checkpoint.core.actions import Acknowledge, Action, Adopt, Examine, MakeOwn, ScanDirectory
from procsv.services.checkpoint.core.directory import (
    BUSY_S,
    CALM_S,
    CALM_UNNAMED_S,
    GATHER_S,
    RESCAN_S,
    SCAN_S_MIN,
    ExternalSaves,
)
from procsv.services.checkpoint.core.facts import AdoptionResult, Scan, Sighting, Verified

PLAN = CheckpointPlan("/l/model.ckpt", "checkpoint", 600.0, 5, 10000.0, False, False, "")
RUN_BEGAN = 1000.0


def external(name: str = "model.ckpt-7", *, version: int = 1, time: float = 2000.0, listed: bool = True) -> Sighting:
    return Sighting(f"/l/{name}", ((f"{name}.index", version, 10, version),), time, listed)


def word_of(path: str, seq: int = 1) -> Received:
    return Received(b"t", TRAINER, 1, seq, 0, UserSave(path), None)


@dataclass
class Directory:
    """A directory that is scanned on request."""

    external_saves: ExternalSaves = field(default_factory=ExternalSaves)
    now_s: float = 0.0
    there: list[Sighting] = field(default_factory=list)
    looks: int = 0

    def __post_init__(self) -> None:
        self.external_saves.start_directory(RUN_BEGAN)

    def go_on(self) -> list[Action]:
        """Return the actions except for scans."""
        out: list[Action] = []
        while self.external_saves.request_scan(PLAN, self.now_s) == [ScanDirectory(PLAN)]:
            self.looks += 1
            out += self.external_saves.scanned(Scan(tuple(self.there), 0, ""), PLAN, self.now_s)
        return out

    def after(self, seconds: float) -> list[Action]:
        self.now_s += seconds
        return self.go_on()

    def examine(self, action: Action, error: str = "", is_changed: bool = False, is_read: bool = True) -> list[Action]:
        assert isinstance(action, Examine)
        sighting = action.sighting
        files = {} if error or is_changed else {"model.ckpt-7.index": FileSum(10, "00")}
        examined = Verified(sighting.path, sighting.signature, 7, files, sighting.time, 0.1, error, is_read)
        return self.external_saves.examined(examined, PLAN, self.now_s)

    def adopt(self, action: Action, is_in: bool = True) -> None:
        assert isinstance(action, Adopt)
        examined, durable = action.examined, None
        if is_in:
            self.there = [s for s in self.there if s.path != examined.path]  # it has its manifest now
            durable = Durable(0, 7, 1, examined.path, "manual", 10, 0.1, ())
        self.external_saves.adopted(AdoptionResult(examined, action.own, durable), self.now_s)


def test_the_directory_is_scanned_every_few_seconds_and_soon_after_a_hint_but_never_without_a_pause() -> None:
    directory = Directory()
    directory.go_on()
    assert directory.looks == 1
    directory.after(RESCAN_S - 0.01)
    assert directory.looks == 1
    directory.after(0.02)
    assert directory.looks == 2
    for _ in range(100):  # a storm of hints, for a second
        directory.external_saves.hint(directory.now_s)
        directory.after(0.01)
    assert directory.looks <= 2 + 1 / SCAN_S_MIN + 1
    assert directory.external_saves.next_due_s() - directory.now_s <= SCAN_S_MIN


def test_the_many_changes_of_one_commit_cause_one_later_scan_and_a_report_waits_for_none() -> None:
    directory = Directory()
    directory.go_on()
    directory.after(1.0)
    for _ in range(10):
        directory.external_saves.hint(directory.now_s)
        directory.after(GATHER_S / 11)
    assert directory.looks == 1
    directory.after(GATHER_S / 10)
    assert directory.looks == 2
    directory.after(1.0)
    assert directory.looks == 2
    directory.external_saves.hint(directory.now_s)
    directory.external_saves.own_save_reported(word_of("/l/model.ckpt-7"), "/l/model.ckpt-7")
    directory.go_on()
    assert directory.looks == 3


def test_during_a_scan_no_other_begins_and_a_hint_is_not_lost() -> None:
    external_saves = ExternalSaves()
    external_saves.start_directory(RUN_BEGAN)
    assert external_saves.request_scan(PLAN, 0.0) == [ScanDirectory(PLAN)]
    external_saves.hint(50.0)
    assert external_saves.request_scan(PLAN, 100.0) == []
    external_saves.scanned(Scan((), 0, ""), PLAN, 100.0)
    assert external_saves.request_scan(PLAN, 100.0 + SCAN_S_MIN) == [ScanDirectory(PLAN)]


def test_a_listed_checkpoint_is_examined_once_it_is_stable_and_then_adopted() -> None:
    directory = Directory(there=[external()])
    assert directory.go_on() == []
    assert directory.after(CALM_S / 2) == []
    (examine,) = directory.after(CALM_S / 2)
    assert examine == Examine(external(), PLAN)
    (adopt,) = directory.examine(examine)
    assert isinstance(adopt, Adopt)
    assert not adopt.own
    directory.adopt(adopt)
    assert directory.after(RESCAN_S) == []
    assert directory.external_saves.is_idle


def test_a_changing_checkpoint_waits_again_and_an_unlisted_one_waits_longer() -> None:
    directory = Directory(there=[external()])
    directory.go_on()
    directory.there = [external(version=2)]
    assert directory.after(CALM_S) == []
    assert directory.after(CALM_S) == [Examine(external(version=2), PLAN)]
    quiet = Directory(there=[external(listed=False)])
    quiet.go_on()
    assert quiet.after(CALM_S) == []
    assert len(quiet.after(CALM_UNNAMED_S - CALM_S)) == 1


def test_the_trainers_report_is_examined_at_once_as_its_own_and_answered_when_adopted() -> None:
    directory = Directory(there=[external()])
    directory.go_on()
    directory.external_saves.own_save_reported(word_of("/l/model.ckpt-7"), "/l/model.ckpt-7")
    (examine,) = directory.after(SCAN_S_MIN)
    (adopt,) = directory.examine(examine)
    assert isinstance(adopt, Adopt)
    assert adopt.own
    directory.adopt(adopt)
    assert directory.after(SCAN_S_MIN) == [Acknowledge(word_of("/l/model.ckpt-7"))]


def test_a_report_of_a_missing_or_known_checkpoint_is_answered() -> None:
    directory = Directory()
    directory.external_saves.own_save_reported(word_of("/l/model.ckpt-3"), "/l/model.ckpt-3")
    assert directory.go_on() == [Acknowledge(word_of("/l/model.ckpt-3"))]


def test_checkpoints_are_examined_one_at_a_time_from_the_oldest() -> None:
    directory = Directory(there=[external("b", time=3000.0), external("a-9", time=2000.0)])
    directory.go_on()
    (first,) = directory.after(CALM_S)
    assert first == Examine(external("a-9", time=2000.0), PLAN)
    assert directory.after(CALM_S) == []
    directory.adopt(directory.examine(first)[0])
    assert directory.after(SCAN_S_MIN) == [Examine(external("b", time=3000.0), PLAN)]


def test_a_damaged_checkpoint_is_left_alone_until_it_changes_and_its_writer_is_answered() -> None:
    directory = Directory(there=[external()])
    directory.external_saves.own_save_reported(word_of("/l/model.ckpt-7"), "/l/model.ckpt-7")
    (examine,) = directory.go_on()
    assert directory.examine(examine, error="damaged") == []
    assert directory.after(SCAN_S_MIN) == [Acknowledge(word_of("/l/model.ckpt-7"))]
    assert directory.after(RESCAN_S) == []
    directory.there = [external(version=2)]
    directory.after(RESCAN_S)
    assert len(directory.after(CALM_S)) == 1


def test_a_checkpoint_that_cannot_be_read_now_is_retried_at_a_later_scan_and_its_writer_waits() -> None:
    directory = Directory(there=[external()])
    word = word_of("/l/model.ckpt-7")
    directory.external_saves.own_save_reported(word, "/l/model.ckpt-7")
    (examine,) = directory.go_on()
    assert directory.examine(examine, error="Input/output error", is_read=False) == []
    assert directory.after(SCAN_S_MIN) == [], "neither answered nor read without pause"
    assert directory.after(RESCAN_S - SCAN_S_MIN - 0.1) == []
    assert directory.after(0.1) == [examine]
    directory.adopt(directory.examine(examine)[0])
    assert directory.after(SCAN_S_MIN) == [Acknowledge(word)]


def test_a_checkpoint_that_cannot_be_read_now_does_not_delay_the_next_one() -> None:
    directory = Directory(there=[external("a-1", time=2000.0), external("a-2", time=3000.0)])
    directory.go_on()
    (first,) = directory.after(CALM_S)
    assert directory.examine(first, error="Input/output error", is_read=False) == []
    assert directory.after(SCAN_S_MIN) == [Examine(external("a-2", time=3000.0), PLAN)]


def test_a_checkpoint_that_changed_during_the_read_is_seen_again() -> None:
    directory = Directory(there=[external()])
    directory.go_on()
    (examine,) = directory.after(CALM_S)
    assert directory.examine(examine, is_changed=True) == []
    directory.there = [external(version=2)]
    directory.after(SCAN_S_MIN)
    assert directory.after(CALM_S) == [Examine(external(version=2), PLAN)]


def test_while_another_saver_holds_the_lock_the_adoption_is_retried() -> None:
    directory = Directory(there=[external()])
    directory.go_on()
    (examine,) = directory.after(CALM_S)
    (adopt,) = directory.examine(examine)
    directory.adopt(adopt, is_in=False)
    assert directory.external_saves.next_due_s() == directory.now_s + BUSY_S
    assert directory.after(BUSY_S / 2) == []
    directory.after(BUSY_S / 2)
    assert directory.after(CALM_S) == [adopt], "what has not changed is not read again"
    directory.adopt(adopt, is_in=False)
    directory.there = [external(version=2)]
    directory.after(BUSY_S)
    assert directory.after(CALM_S) == [Examine(external(version=2), PLAN)]


def test_a_late_report_makes_an_external_checkpoint_the_savers_own() -> None:
    directory = Directory(there=[external()])
    directory.go_on()
    (examine,) = directory.after(CALM_S)
    directory.adopt(directory.examine(examine)[0])
    word = word_of("/l/model.ckpt-7")
    directory.external_saves.own_save_reported(word, "/l/model.ckpt-7")
    assert directory.after(SCAN_S_MIN) == [MakeOwn("/l/model.ckpt-7", PLAN), Acknowledge(word)]
    directory.external_saves.own_save_reported(word, "/l/model.ckpt-7")
    assert directory.after(SCAN_S_MIN) == [Acknowledge(word)]


def test_checkpoints_from_before_the_run_are_not_news() -> None:
    directory = Directory(there=[external(time=RUN_BEGAN - 1.0)])
    assert [directory.go_on(), directory.after(CALM_S), directory.after(RESCAN_S)] == [[], [], []]
    as_it_began = Directory(there=[external(time=RUN_BEGAN)])
    assert [as_it_began.go_on(), as_it_began.after(CALM_S)] == [[], [Examine(external(time=RUN_BEGAN), PLAN)]]
    unknown = Directory(there=[external()])
    unknown.external_saves.start_directory(None)
    assert [unknown.go_on(), unknown.after(CALM_S), unknown.after(RESCAN_S)] == [[], [], []]
    unknown.there = [external(), external("model.ckpt-8")]
    unknown.after(RESCAN_S)
    assert unknown.after(CALM_S) == [Examine(external("model.ckpt-8"), PLAN)]


def test_nothing_waits_for_a_dead_trainer() -> None:
    directory = Directory()
    directory.go_on()
    directory.there = [external(listed=False)]
    directory.external_saves.note_writers_gone(True)
    assert directory.go_on() == [Examine(external(listed=False), PLAN)]
    assert not directory.external_saves.is_idle


def test_an_unreadable_directory_is_retried_at_the_next_scan(tmp_path: Any) -> None:
    directory = Directory(there=[external()])
    directory.external_saves.request_scan(PLAN, 0.0)
    directory.external_saves.scanned(Scan((), None, "it is gone"), PLAN, 0.0)
    assert directory.external_saves.next_due_s() == RESCAN_S


def test_a_reported_save_is_adopted_though_the_clock_was_set_back_to_before_the_run() -> None:
    directory = Directory()
    save = external(time=RUN_BEGAN - 500.0)
    directory.there.append(save)
    assert directory.go_on() == []
    directory.external_saves.own_save_reported(word_of(save.path), save.path)
    (examine,) = directory.after(SCAN_S_MIN)
    assert examine == Examine(save, PLAN)
    (adopt,) = directory.examine(examine)
    assert isinstance(adopt, Adopt)
    assert adopt.own
