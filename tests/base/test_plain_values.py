"""Plain values are restored exactly, bit for bit."""

from __future__ import annotations

import itertools
import random
from collections import Counter, OrderedDict, deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procsv.base.plain_values import BIG_ARRAY_BYTES, decode, digest, encode, find_unkept, still
from tests.support.meanwhile import happens_meanwhile

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
keys = st.text() | st.integers() | st.booleans()
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner) | st.dictionaries(keys, inner) | st.lists(inner).map(tuple) | st.sets(st.integers() | st.text())
    ),
    max_leaves=20,
)


@given(values)
def test_a_plain_value_comes_back_with_its_types(value: Any) -> None:
    assert not find_unkept(value)
    assert decode(encode(still(value))) == value
    again = decode(encode(value))
    assert again == value
    assert _types(again) == _types(value)


def _types(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value), [_types(item) for item in value]
    if isinstance(value, dict):
        return type(value), [(_types(key), _types(item)) for key, item in value.items()]
    return type(value)


@pytest.mark.parametrize(
    "array",
    [
        np.float32(0.1),
        np.int64(-3),
        np.array(2.5),
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.zeros((0, 4), np.float16),
        np.array(["a", "öü"]),
        np.array([True, False]),
        np.array([1 + 2j]),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    ],
)
def test_an_array_comes_back_with_its_type_and_shape(array: Any) -> None:
    again = decode(encode([array]))[0]
    assert type(again) is type(array)
    assert (again.dtype, again.shape) == (array.dtype, array.shape)
    assert np.array_equal(again, array)


def test_the_state_of_a_random_generator_comes_back() -> None:
    assert decode(encode(random.getstate())) == random.getstate()
    kind, numbers, *rest = np.random.get_state()
    again = decode(encode((kind, numbers, *rest)))
    assert again[0] == kind
    assert np.array_equal(again[1], numbers)
    assert list(again[2:]) == rest


@pytest.mark.parametrize(
    "value", [object(), [print], {"a": lambda: None}, np.array([object()]), np.float32, type("I", (int,), {})()]
)
def test_a_value_that_is_not_plain_is_recognized(value: Any) -> None:
    assert find_unkept(value)


@pytest.mark.parametrize("shares_arrays", [False, True])
def test_a_copy_does_not_change_with_its_original_except_for_large_arrays_that_may_be_shared(
    shares_arrays: bool,
) -> None:
    value: dict[str, Any] = {"a": [np.zeros(3)], "b": np.zeros(BIG_ARRAY_BYTES)}
    copy = still(value, shares_arrays=shares_arrays)
    value["a"][0][0] = 1
    value["a"].append(2)
    value["b"][0] = 1
    assert copy["a"][0][0] == 0
    assert len(copy["a"]) == 1
    assert (copy["b"] is value["b"]) == (copy["b"][0] == 1) == shares_arrays


@pytest.mark.parametrize("make", [dict, OrderedDict, Counter, set, deque, list])
@pytest.mark.parametrize("read", [find_unkept, still, digest, encode])
def test_a_container_that_another_thread_changes_meanwhile_is_read(read: Any, make: Any) -> None:
    filled: Any = make({number: number / 2 for number in range(300)})
    value, changes = {"of a thread": [filled, (filled, "")]}, iter(range(300, 400))

    def change() -> None:
        for number in itertools.islice(changes, 1):
            if make in (deque, list):
                filled.append(number)
            elif make is set:
                filled.add(number)
            else:
                filled[number] = 0

    with happens_meanwhile(change):
        read(value)
    assert len(filled) > 300
