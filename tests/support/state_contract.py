"""The contract of every state source, as assertions that work on any kind. It imports no TensorFlow."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from procsv.base.identity import TRAINER
from procsv.ipc.shm.slot_file import SlotPool, SlotsLost
from procsv.ipc.shm.slot_header import scan_slots
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.training.snapshots.backends import SlotBackend, StagingBackend
from procsv.training.snapshots.boundary import Boundary
from procsv.training.snapshots.restore_client import restore_slot
from procsv.training.snapshots.source import CannotRestore, StateSource

RUN = "0123456789abcdef"
Values = dict[str, bytes]  # the state's bytes by key


class Trained(Protocol):
    """A model under test and its state source."""

    @property
    def source(self) -> StateSource: ...

    def train(self) -> None:
        """Train one step, which changes all of the state depending on all of it."""

    def evaluate(self, within: Callable[[], None]) -> None:
        """Pass the boundary with a call that changes nothing, and call `within` during it."""

    def train_and_look(self, within: Callable[[], None]) -> None:
        """Train a step and call `within` during it."""

    def values(self) -> Values: ...


class Kind(Protocol):
    """Makes models of one kind."""

    def model(self, seed: int, more: bool = False) -> Trained:
        """Make a model. Another `seed` gives another initial state; `more` adds an entry `more` to the state."""


@contextmanager
def _slots(source: StateSource) -> Iterator[tuple[SlotBackend, Path]]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="procsv-test-") as directory:
        backend = SlotBackend(SlotPool(Path(directory), RUN, TRAINER, 1), source, "test")
        backend.reserve()
        try:
            yield backend, Path(directory)
        finally:
            backend.close()


def _snapshot(backend: SlotBackend, sequence: int) -> Callable[[], Any]:
    finish = backend.capture(sequence, "")
    assert finish is not None
    return finish


def the_spec_gives_each_entry_a_place_of_its_own(kind: Kind) -> None:
    spec = kind.model(1).source.spec
    assert spec is not None
    entries = [entry for shard in spec.shards for entry in shard]
    assert len({(entry.key, entry.slice) for entry in entries}) == len(entries)
    assert {entry.number for entry in entries} == set(range(len(spec.sizes)))
    places = sorted((at, at + (size or 0)) for at, size in zip(spec.layout.offsets, spec.sizes, strict=True))
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(places))
    assert places[-1][1] <= spec.layout.end


def steps_are_counted_and_reading_them_is_no_step(kind: Kind) -> None:
    model, boundary = kind.model(1), Boundary(lambda: None)
    model.source.attach(boundary)
    before = model.source.read_step()
    for _ in range(3):
        model.train()
    seen: list[int] = []
    other = threading.Thread(target=lambda: seen.append(model.source.read_step()))
    other.start()
    other.join()
    assert seen == [model.source.read_step()] == [before + 3]
    assert boundary.runs == 3


def a_step_ends_at_the_boundary_when_something_is_due(kind: Kind) -> None:
    model, visits = kind.model(1), list[int]()
    boundary = Boundary(lambda: visits.append(model.source.read_step()))
    model.source.attach(boundary)
    model.train()
    boundary.due = True
    model.train()
    assert visits == [model.source.read_step()]


def what_is_captured_stays_as_it_was_while_training_goes_on(kind: Kind) -> None:
    model = kind.model(1)
    model.source.attach(Boundary(lambda: None))
    model.source.warm_up()
    with _slots(model.source) as (backend, shm):
        for sequence in range(1, 5):
            model.train()
            wanted, step = model.values(), model.source.read_step()
            finish = _snapshot(backend, sequence)
            model.train()
            model.train()
            finish()
            reader = SlotReader(scan_slots(shm)[0])
            reader.verify_slot()
            entries = [entry for shard in reader.contents.shards for entry in shard]
            assert {e.key: reader.map[e.offset : e.offset + e.size] for e in entries} == wanted
            assert reader.info.step == step
            reader.close()


def a_state_whose_slots_were_removed_is_captured_into_new_ones(kind: Kind) -> None:
    model = kind.model(1)
    model.train()
    with _slots(model.source) as (backend, shm):
        finish = _snapshot(backend, 1)
        shutil.rmtree(shm)
        with pytest.raises(SlotsLost):
            finish()
        assert backend.capture(2, "") is None
        loss = backend.find_loss()
        assert loss is not None
        assert not loss.is_alone
        backend.reserve()
        assert shm.stat().st_mode & 0o777 == 0o700
        _snapshot(backend, 3)()
        reader = SlotReader(scan_slots(shm)[0])
        reader.verify_slot()
        assert (reader.info.sequence, reader.info.step) == (3, model.source.read_step())
        reader.close()


def a_restored_state_goes_on_as_the_one_that_was_captured(kind: Kind) -> None:
    model, other = kind.model(1), kind.model(2)
    model.train()
    with _slots(model.source) as (backend, shm):
        _snapshot(backend, 1)()
        slot = scan_slots(shm)[0].path
        before = slot.read_bytes()
        assert other.values() != model.values()
        restore_slot(slot, other.source)
        assert other.values() == model.values()
        for _ in range(3):
            model.train()
            other.train()
        assert other.values() == model.values()
        assert slot.read_bytes() == before, "the snapshot has been trained on"


def a_snapshot_that_lacks_an_entry_is_refused_and_changes_nothing(kind: Kind) -> None:
    model, other = kind.model(1), kind.model(2, more=True)
    before = other.values()
    with _slots(model.source) as (backend, shm):
        _snapshot(backend, 1)()
        with pytest.raises(CannotRestore, match="more"):
            restore_slot(scan_slots(shm)[0].path, other.source)
    assert other.values() == before


def a_checkpoint_that_the_source_writes_itself_restores_the_same_bits(kind: Kind) -> None:
    model, other = kind.model(1), kind.model(2)
    model.train()
    with tempfile.TemporaryDirectory() as directory:
        finish = StagingBackend(model.source, [Path(directory) / "removed"], "r", 1).capture(1, "manual")
        assert finish is not None
        wanted = model.values()
        model.train()
        staged: Any = finish()
        assert staged.step == model.source.read_step() - 1
        other.source.restore(staged.prefix)
    assert other.values() == wanted


def only_a_call_that_may_change_the_state_says_so(kind: Kind) -> None:
    model, said = kind.model(1), list[bool]()
    model.source.attach(Boundary(lambda: None))
    model.evaluate(lambda: said.append(model.source.may_change()))
    model.train_and_look(lambda: said.append(model.source.may_change()))
    assert said == [False, True]


CONTRACT: list[Callable[[Kind], None]] = [
    the_spec_gives_each_entry_a_place_of_its_own,
    steps_are_counted_and_reading_them_is_no_step,
    a_step_ends_at_the_boundary_when_something_is_due,
    what_is_captured_stays_as_it_was_while_training_goes_on,
    a_state_whose_slots_were_removed_is_captured_into_new_ones,
    a_restored_state_goes_on_as_the_one_that_was_captured,
    a_snapshot_that_lacks_an_entry_is_refused_and_changes_nothing,
    a_checkpoint_that_the_source_writes_itself_restores_the_same_bits,
    only_a_call_that_may_change_the_state_says_so,
]
