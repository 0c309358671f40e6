"""procsv distinguishes a callback's state from its configuration, without Keras."""

from __future__ import annotations

import datetime
import enum
import itertools
import os
import random
import tempfile
import threading
import time
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from procsv.base.plain_values import decode, encode
from procsv.training.keras.callback_state import Baseline, SavedValue, find_changed_settings

Pair = namedtuple("Pair", "low high")


class Phase(enum.Enum):
    WARM_UP = 1
    TRAIN = 2


@dataclass
class Record:
    total: float = 0.0
    seen: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Slots:
    total: float = 0.0


@dataclass(frozen=True)
class Frozen:
    total: float = 0.0


class Mean:
    """An object of the program's own."""

    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0


class Shared:
    """Counts in attributes of its class, which no object has."""

    count, losses, path = 0, list[float](), "here"

    def on_train_begin(self) -> None: ...

    def note(self, loss: float) -> None:
        Shared.count += 1
        self.losses.append(loss)


class Callback:
    """Like Keras' own, with attributes from a test."""

    def __init__(self, *, patience: int = 3, **attributes: Any) -> None:
        self.patience, self.wait = patience, 0
        self.best: Any = None
        vars(self).update(attributes)

    def on_train_begin(self) -> None:
        self.wait = 0


def begin(callback: Any) -> Baseline:
    """Begin a fit."""
    baseline = Baseline(callback, frozenset())
    callback.on_train_begin()
    baseline.note_begun(callback)
    return baseline


def save(baseline: Baseline, callback: Any) -> tuple[dict[str, SavedValue], dict[str, str]]:
    """Return the state as the next process gets it, and what is not kept."""
    state, unkept = baseline.read_state(callback)
    plain = decode(encode({name: tuple(saved) for name, saved in state.items()}))
    return {name: SavedValue(*saved) for name, saved in plain.items()}, unkept


def restart(make: Callable[[], Any], train: Callable[[Any], None], make_again: Callable[[], Any] | None = None) -> Any:
    """Return the next attempt's callback after `train` in the first."""
    first = make()
    baseline = begin(first)
    train(first)
    state, unkept = save(baseline, first)
    assert unkept == {}
    second = (make_again or make)()
    assert begin(second).write_state(second, state) == {}
    return second


def test_what_the_fit_changes_comes_back_and_the_rest_is_not_state() -> None:
    callback = Callback(patience=10)
    baseline = begin(callback)
    callback.wait, callback.best = 2, np.float64(0.5)
    state, _ = save(baseline, callback)
    assert state.keys() == {"wait", "best"}
    again = Callback(patience=30)
    assert begin(again).write_state(again, state) == {}
    assert (again.wait, again.best, again.patience) == (2, 0.5, 30)


def test_a_changed_setting_is_named_with_both_values() -> None:
    before, now = Callback(patience=10), Callback(patience=30)
    settings = decode(encode(begin(before).settings))
    assert find_changed_settings(settings, begin(before).settings) == {}
    assert find_changed_settings(settings, begin(now).settings) == {"patience": "10 then, 30 now"}


def test_a_different_initial_value_in_the_program_wins_and_is_named() -> None:
    callback = Callback(rate=0.1)
    baseline = begin(callback)
    callback.rate = 0.05  # type: ignore[attr-defined]
    state, _ = save(baseline, callback)
    again = Callback(rate=0.8)
    assert begin(again).write_state(again, state) == {"rate": "0.1 then, 0.8 now"}
    assert again.rate == 0.8  # type: ignore[attr-defined]


def test_the_state_is_the_same_over_many_restarts() -> None:
    callback = Callback(seen=[])
    baseline = begin(callback)
    for attempt in range(5):
        callback.wait += 1
        callback.seen.append(attempt)  # type: ignore[attr-defined]
        state, _ = save(baseline, callback)
        callback = Callback(seen=[])
        baseline = begin(callback)
        assert baseline.write_state(callback, state) == {}
        assert (callback.wait, callback.seen) == (attempt + 1, list(range(attempt + 1)))  # type: ignore[attr-defined]


def test_a_value_that_returns_to_its_constructor_value_replaces_what_on_train_begin_sets() -> None:
    def train(callback: Any) -> None:
        callback.wait = 7

    def make() -> Callback:
        callback = Callback()
        callback.wait = 7
        return callback

    assert restart(make, train).wait == 7


def add(callback: Any) -> None:
    callback.held.extend([1.5, 2.5])


def grow(callback: Any) -> None:
    callback.held["a"] = 2


CONTAINERS: list[tuple[Callable[[], Any], Callable[[Any], None]]] = [
    (lambda: deque(maxlen=5), add),
    (list, add),
    (lambda: bytearray(b"x"), lambda callback: callback.held.extend(b"yz")),
    (set, lambda callback: callback.held.update({3, "b"})),
    (dict, grow),
    (OrderedDict, grow),
    (lambda: defaultdict(list), lambda callback: callback.held["a"].append(1)),
    (lambda: defaultdict(lambda: 3, a=1), lambda callback: None),
    (Counter, lambda callback: callback.held.update("abba")),
    (lambda: np.zeros(3), lambda callback: callback.held.__iadd__(1)),
    (lambda: np.zeros(100_000), lambda callback: callback.held.__setitem__(77_777, 1)),
    (lambda: None, lambda callback: vars(callback).update(held=deque([1, 2], 2))),
    (lambda: None, lambda callback: vars(callback).update(held=defaultdict(int, a=1))),
    (lambda: None, lambda callback: vars(callback).update(held=frozenset({1, 2}))),
    (lambda: None, lambda callback: vars(callback).update(held=1 + 2j)),
    (lambda: None, lambda callback: vars(callback).update(held=np.float64(0.1))),
    (lambda: None, lambda callback: vars(callback).update(held=np.datetime64("2026-01-02"))),
    (lambda: None, lambda callback: vars(callback).update(held=datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC))),
    (lambda: None, lambda callback: vars(callback).update(held=datetime.date(2026, 1, 2))),
    (lambda: None, lambda callback: vars(callback).update(held=datetime.timedelta(1, 2, 3))),
    (lambda: Pair(0, 1), lambda callback: vars(callback).update(held=Pair(2, [3]))),
    (lambda: Frozen(), lambda callback: vars(callback).update(held=replace(callback.held, total=2.0))),
    (lambda: Phase.WARM_UP, lambda callback: vars(callback).update(held=Phase.TRAIN)),
]


@pytest.mark.parametrize(("make", "train"), CONTAINERS)
def test_a_standard_container_comes_back_with_its_type(make: Callable[[], Any], train: Callable[[Any], None]) -> None:
    wanted = Callback(held=make())
    train(wanted)
    again = restart(lambda: Callback(held=make()), train).held
    assert type(again) is type(wanted.held)  # type: ignore[attr-defined]
    assert np.array_equal(again, wanted.held) if isinstance(again, np.ndarray) else again == wanted.held  # type: ignore[attr-defined]
    assert getattr(again, "maxlen", None) == getattr(wanted.held, "maxlen", None)  # type: ignore[attr-defined]


@pytest.mark.parametrize("made", [random.Random, np.random.default_rng, np.random.RandomState])
def test_a_random_generator_continues_at_its_position(made: Any) -> None:
    def draw(callback: Any) -> None:
        callback.random.random()

    again, alone = restart(lambda: Callback(random=made(3)), draw), made(3)
    alone.random()
    assert again.random.random() == alone.random()


def test_fields_of_the_programs_own_objects_are_part_of_the_callbacks_state() -> None:
    def train(callback: Any) -> None:
        callback.record.total, callback.mean.sum, callback.slots.total = 1.5, 2.5, 3.5
        callback.record.seen.append(4)
        callback.mean.last = "new"

    again = restart(lambda: Callback(record=Record(), mean=Mean(), slots=Slots()), train)
    assert again.mean.last == "new"
    assert again.record == Record(1.5, [4])
    assert (again.mean.sum, again.slots.total) == (2.5, 3.5)


def test_a_list_that_the_program_shares_is_filled_and_not_replaced() -> None:
    lists: list[list[int]] = []

    def make() -> Callback:
        lists.append([])
        return Callback(seen=lists[-1])

    again = restart(make, lambda callback: callback.seen.append(3))
    assert again.seen is lists[-1]
    assert lists[-1] == [3]


def test_a_constant_of_the_program_is_left_alone_where_the_fit_has_replaced_it() -> None:
    constant = [1, 2]
    again = restart(
        lambda: Callback(order=constant), lambda callback: vars(callback).update(order=[*callback.order, 3])
    )
    assert again.order == [1, 2, 3]
    assert constant == [1, 2]


def test_a_deque_that_todays_program_made_longer_keeps_its_length() -> None:
    again = restart(lambda: Callback(held=deque(maxlen=2)), add, lambda: Callback(held=deque(maxlen=9)))
    assert again.held == deque([1.5, 2.5], maxlen=9)
    assert again.held.maxlen == 9


# -- process-specific values -------------------------------------------------------------------------------------
class OfProcess(Callback):
    """Has values that differ in each process: from the constructor, from the start of training, and later."""

    def __init__(self, directory: Path) -> None:
        super().__init__(scratch=tempfile.mkdtemp(dir=directory), owner=os.getpid(), path=directory / "a")

    def on_train_begin(self) -> None:
        self.wait, self.pid, self.begun = 0, os.getpid(), time.time()
        self.file = tempfile.mkdtemp(dir=vars(self)["path"].parent)
        self.lock, self.all = threading.Lock(), {"pid": os.getpid(), "file": self.file}


def test_what_the_constructor_and_on_train_begin_derive_from_their_process_is_not_state(tmp_path: Path) -> None:
    callback = OfProcess(tmp_path)
    baseline = begin(callback)
    callback.wait = 1
    state, unkept = save(baseline, callback)
    assert state.keys() == {"wait"}
    assert unkept == {}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda directory: str(directory), "a path"),
        (lambda directory: str(directory / "new.keras"), "a path"),
        (lambda directory: os.fsencode(directory), "a path"),
        (lambda directory: {"best": (1, str(directory))}, "a path"),
        (lambda directory: "gs://bucket/best.keras", "a path"),
        (lambda directory: directory, "PosixPath"),
        (lambda directory: threading.Lock(), "lock"),
        (lambda directory: [threading.Lock()], "lock"),
        (lambda directory: lambda: 0, "function"),
        (lambda directory: Record(), "fit made"),
        (lambda directory: [Record()], "Record"),
        (lambda directory: Phase.TRAIN, "fit made"),
        (lambda directory: np.array([object()]), "object"),
    ],
)
def test_what_cannot_be_kept_is_named_with_the_reason(tmp_path: Path, make: Any, why: str) -> None:
    callback = Callback(last=None)
    baseline = begin(callback)
    callback.last = make(tmp_path)  # type: ignore[attr-defined]
    state, unkept = save(baseline, callback)
    assert state == {}
    assert why in unkept["last"]


def test_a_relative_path_is_recognized_by_its_file_and_other_text_is_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train", "a.keras", "logs/1"):
        Path(name).mkdir(parents=True)
    callback = Callback(a="", b="", c="", d="", e="", f="")
    baseline = begin(callback)
    words = {"a": "train", "b": "loss/accuracy", "c": "/dense/kernel", "d": "a.keras", "e": "logs/1", "f": "0.5"}
    vars(callback).update(words)
    state, unkept = save(baseline, callback)
    assert state.keys() == {"a", "b", "c", "f"}
    assert unkept == {"d": "a path", "e": "a path"}


def test_a_counter_that_equals_the_process_id_is_state() -> None:
    callback = Callback(steps=os.getpid() - 1)
    baseline = begin(callback)
    callback.steps += 1  # type: ignore[attr-defined]
    assert save(baseline, callback)[0].keys() == {"steps"}


def test_an_iterator_and_a_variable_are_named_because_they_change_on_their_own() -> None:
    class Variable:
        def assign(self, value: int) -> None: ...

        __slots__ = ()

    callback = Callback(count=itertools.count(), variable=Variable(), print=print)
    assert save(begin(callback), callback)[1].keys() == {"count", "variable"}


def test_a_container_that_contains_itself_is_named_and_does_not_hang() -> None:
    callback = Callback(held=[])
    baseline = begin(callback)
    callback.held.append(callback.held)  # type: ignore[attr-defined]
    assert "deep" in save(baseline, callback)[1]["held"]


# -- several fits ------------------------------------------------------------------------------------------------
def test_a_second_fits_callback_has_what_the_first_one_left_even_if_the_program_skips_the_first() -> None:
    callback = Callback(total=0, left=0, patience=3)
    baseline = begin(callback)
    vars(callback).update(total=5, left=9)
    baseline.start_fit(callback)
    callback.on_train_begin()
    baseline.note_begun(callback)
    vars(callback).update(total=6)
    state, _ = save(baseline, callback)
    again = Callback(total=0, left=0, patience=3)
    assert begin(again).write_state(again, state) == {}
    assert (again.total, again.left) == (6, 9)  # type: ignore[attr-defined]


def test_what_the_program_sets_today_between_two_fits_is_not_overwritten() -> None:
    def second_fit(patience: int) -> tuple[Callback, Baseline]:
        callback = Callback(patience=3)
        baseline = begin(callback)
        callback.patience = patience
        baseline.start_fit(callback)
        callback.on_train_begin()
        baseline.note_begun(callback)
        return callback, baseline

    callback, baseline = second_fit(10)
    callback.wait = 2
    state, _ = save(baseline, callback)
    again, baseline = second_fit(30)
    assert baseline.write_state(again, state) == {}
    assert (again.patience, again.wait) == (30, 2)


def test_a_fit_called_again_after_an_exception_continues_from_its_state() -> None:
    callback = Callback(total=0)
    baseline = begin(callback)
    vars(callback).update(total=5, wait=1)
    state, _ = save(baseline, callback)
    vars(callback).update(total=7, wait=2)  # after the state, until the exception
    baseline.start_fit(callback)
    baseline.repeat_fit()
    callback.on_train_begin()
    baseline.note_begun(callback)
    assert baseline.write_state(callback, state) == {}
    assert (callback.total, callback.wait) == (5, 1)  # type: ignore[attr-defined]


def test_a_second_fit_called_again_has_what_the_first_one_left() -> None:
    callback = Callback(left=0)
    baseline = begin(callback)
    vars(callback).update(left=9)
    for change in (0, 1):  # the second fit, and then once more after an exception
        baseline.start_fit(callback)
        if change:
            baseline.repeat_fit()
        callback.on_train_begin()
        baseline.note_begun(callback)
        if not change:
            state, _ = save(baseline, callback)
            vars(callback).update(left=10)
    assert baseline.write_state(callback, state) == {}
    assert vars(callback)["left"] == 9


def test_a_state_for_an_object_of_another_class_is_dropped_and_named() -> None:
    callback = Callback(phase=Phase.WARM_UP, record=Record())
    baseline = begin(callback)
    vars(callback).update(phase=Phase.TRAIN)
    vars(callback)["record"].total = 2.0
    state, _ = save(baseline, callback)
    again = Callback(phase=None, record=None)
    assert begin(again).write_state(again, state).keys() == {"phase", "record.total"}
    assert vars(again)["phase"] is vars(again)["record"] is None


def test_what_a_callback_keeps_in_its_class_is_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shared, "losses", [])
    monkeypatch.setattr(Shared, "count", 0)
    first = Shared()
    baseline = begin(first)
    for loss in (0.5, 0.25):
        first.note(loss)
    state, unkept = save(baseline, first)
    assert not unkept
    monkeypatch.setattr(Shared, "losses", [])  # as in another process
    monkeypatch.setattr(Shared, "count", 0)
    second, held = Shared(), Shared.losses
    assert begin(second).write_state(second, state) == {}
    assert (Shared.count, Shared.losses, vars(second)) == (2, [0.5, 0.25], {})
    assert held is Shared.losses
