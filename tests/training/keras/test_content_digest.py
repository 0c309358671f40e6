"""Two processes agree on whether values are the same, or that nothing can be proved."""

from __future__ import annotations

import datetime
import functools
import io
import subprocess
import sys
import threading
import time
import types
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from procsv.training.keras import content_digest
from procsv.training.keras.content_digest import ContentDigest

FACTOR = 3


def digest_of(*values: Any) -> str | None:
    """Return the digest of `values`, or None if not all of their content can be seen."""
    digest = ContentDigest()
    for value in values:
        digest.add_value(value)
    return digest.hexdigest() if digest.is_whole else None


class Data:
    def __init__(self, rows: Any, size: int) -> None:
        self.rows, self.size = rows, size


class Batches(list[int]):
    def __init__(self, rows: Any, size: int) -> None:
        super().__init__(rows)
        self.size = size


class Reader:
    __slots__ = ("__at", "rows")

    def __init__(self, rows: Any, at: int) -> None:
        self.rows, self.__at = rows, at


class Alike:
    """Shows nothing of its content."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def __repr__(self) -> str:
        return "alike"


class Rate(float):
    """A number of a class of the program's own."""


class Config:
    rate = 1.0

    @property
    def half(self) -> float:
        return self.rate / 2


class Uses(Data):
    def use(self) -> float:
        return Config.rate


class Logged(io.BytesIO):
    def __init__(self, name: str) -> None:
        super().__init__(b"content that no attribute shows")
        self.name = name


def scaled(value: float) -> float:
    return value * FACTOR


def counting(first: int, taken: int = 0) -> Any:
    def one_by_one() -> Any:
        at = first
        while True:
            yield at
            at += 1

    found = one_by_one()
    for _ in range(taken):
        next(found)
    return found


def delegating(first: int) -> Any:
    inner = [counting(first)]
    return (lambda: (yield from inner.pop()))()


def started(generator: Any) -> Any:
    next(generator)
    return generator


def carrying(**attributes: Any) -> Any:
    """Return a function, and what `functools.partial` makes of it, with these attributes."""
    function, partial = scaling(1), functools.partial(scaled, 1)
    vars(function).update(attributes)
    vars(partial).update(attributes)
    return function, partial


def in_itself(content: Any) -> Any:
    made: set[Any] = set()
    made.add(Alike([content, made]))
    return made


def masked(*mask: int) -> Any:
    return np.ma.masked_array([1.0, 2.0, 3.0], mask=np.array(mask, bool))


def scaling(factor: float) -> Any:
    return lambda value: value * factor


A = np.arange(12.0).reshape(4, 3)
SAME: list[tuple[Any, Any]] = [
    (A, A.copy()),
    (np.arange(24.0).reshape(4, 6)[:, ::2], np.arange(24.0).reshape(4, 6)[:, ::2].copy()),
    (Data(A, 2), Data(A.copy(), 2)),
    (Reader(A, 2), Reader(A.copy(), 2)),
    ({"a": [1, (2.0, None)]}, {"a": [1, (2.0, None)]}),
    (scaling(2), scaling(2)),
    (functools.partial(scaled, 1), functools.partial(scaled, 1)),
    (functools.lru_cache(scaling(2)), functools.lru_cache(scaling(2))),
    (counting(1, taken=2), counting(1, taken=2)),
    ({"b", "a"}, {"a", "b"}),
    ({Alike(1), Alike("a"), Data(A, 1)}, {Data(A.copy(), 1), Alike("a"), Alike(1)}),
    (in_itself(1), in_itself(1)),
    (time.time(), time.time() + 1e-6),
    (datetime.datetime.now(datetime.UTC), datetime.datetime.now(datetime.UTC)),
    (masked(0, 1, 0), masked(0, 1, 0)),
    (np.random.default_rng(1), np.random.default_rng(1)),
]
OTHER: list[tuple[Any, Any]] = [
    (A, A.reshape(3, 4)),
    (A, A.astype("float32")),
    (A, np.where(A == 7, 8, A)),
    (Data(A, 2), Data(A, 3)),
    (Reader(A, 2), Reader(A, 3)),
    (Batches([1, 2], 2), Batches([1, 2], 3)),
    (scaling(2), scaling(3)),
    (functools.lru_cache(scaling(2)), functools.lru_cache(scaling(3))),
    (lambda value: value + 1, lambda value: value + 2),
    (counting(1), counting(2)),
    (counting(1), counting(1, taken=2)),
    (carrying(a=1)[0], carrying(a=2)[0]),
    (carrying(a=1)[1], carrying(a=2)[1]),
    (started(delegating(1)), started(delegating(2))),
    ({Alike(1)}, {Alike(2)}),
    (in_itself(1), in_itself(2)),
    (Rate(1), Rate(2)),
    (masked(0, 1, 0), masked(0, 0, 1)),
    (np.zeros(2, [("a", "<i8")]), np.zeros(2, [("b", "<i8")])),
    (np.dtype("i4"), np.dtype("f4")),
    (datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)),
    (1, 1.0),
    ("1", 1),
    (["ab", "c"], ["a", "bc"]),
    (deque([1]), [1]),
    (OrderedDict(a=1), {"a": 1}),
    (np.random.default_rng(1), np.random.default_rng(2)),
    (Path("a"), Path("b")),
    (threading.Lock(), threading.RLock()),
]


@pytest.mark.parametrize("pair", SAME)
def test_values_with_the_same_content_have_the_same_digest(pair: tuple[Any, Any]) -> None:
    assert digest_of(pair[0]) == digest_of(pair[1])
    assert digest_of(pair[0]) is not None


@pytest.mark.parametrize("pair", OTHER)
def test_values_with_other_content_have_another_digest(pair: tuple[Any, Any]) -> None:
    assert digest_of(pair[0]) != digest_of(pair[1])


def test_a_function_counts_with_the_globals_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest_of(scaled)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 4)
    assert digest_of(scaled) != before


def test_a_value_that_hides_its_content_proves_nothing(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        for hidden in (file, (number for number in iter([3])), iter([1]), {"a": iter([1])}, Logged("a")):
            assert digest_of(hidden) is None


def test_an_object_counts_with_the_methods_of_its_class_and_the_classes_that_they_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [digest_of(Uses(A, 1))]
    for kind, name, value in ((Config, "rate", 2.0), (Config, "half", property(scaled)), (Uses, "use", scaled)):
        monkeypatch.setattr(kind, name, value)
        found.append(digest_of(Uses(A, 1)))
    assert None not in found
    assert len(set(found)) == 4


def test_a_function_counts_with_what_it_names_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    config = types.ModuleType("config_of_this_program")
    vars(config).update(scale=1.0, unused=1.0)
    names: dict[str, Any] = {"__name__": "__main__", "config": config}
    exec("def scaled(value): return value * config.scale", names)
    before = digest_of(names["scaled"])
    monkeypatch.setattr(config, "unused", 2.0)
    assert digest_of(names["scaled"]) == before
    monkeypatch.setattr(config, "scale", 2.0)
    assert digest_of(names["scaled"]) not in (before, None)


def test_every_row_of_an_array_counts_without_a_copy_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_digest, "CHUNK_BYTES", 1000)
    rows = np.arange(50_000.0).reshape(-1, 5)
    other = rows.copy()
    other[7, 3] += 1
    for part in (rows, rows[::2], rows[:, 1:4], rows.T, rows[np.newaxis, ::3]):
        assert digest_of(part) == digest_of(part.copy())
    assert digest_of(rows) != digest_of(other)
    assert digest_of(rows.T) != digest_of(other.T)


def test_a_large_array_in_a_file_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", A)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert digest_of(mapped[1:]) is not None
    monkeypatch.setattr(content_digest, "READ_BYTES_MAX", 10)
    assert digest_of(A) is not None
    assert digest_of(mapped[1:]) is None


def test_more_values_than_can_be_walked_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_digest, "VALUES_MAX", 10)
    assert digest_of([[number] for number in range(20)]) is None


def test_another_process_computes_the_same_digest() -> None:
    text = (
        "import numpy as np; from procsv.training.keras.content_digest import ContentDigest; k, digest = 3, ContentDigest()\n"
        "for value in ({'a', 'b'}, np.arange(5), lambda v: v * k): digest.add_value(value)\n"
        "print(digest.hexdigest())"
    )
    found = {
        subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert len(found) == 1
    assert len(found.pop().strip()) == 32
