"""Two processes agree on whether values are the same, or that nothing can be proved."""

from __future__ import annotations

import functools
import io
import subprocess
import sys
import threading
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


def test_for_a_large_array_evenly_spaced_rows_and_the_shape_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_digest, "ARRAY_BYTES_MAX", 1000)
    large = np.arange(50_000)
    assert digest_of(large) == digest_of(large.copy())
    assert digest_of(large) != digest_of(np.arange(50_001))
    assert digest_of(large) != digest_of(large[::-1])


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
