"""Durations and sizes are parsed and shown as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procsv.base.units import parse_duration, parse_size, show_count, show_duration, show_size

SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {"": 1, "k": 10**3, "M": 10**6, "g": 10**9, "T": 10**12, "ki": 2**10, "Mi": 2**20, "Gi": 2**30, "TI": 2**40}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("90s", 90.0),
        ("5m", 300.0),
        ("2h", 7200.0),
        ("250ms", 0.25),
        (" 1.5 h ", 5400.0),
        ("5min", 300.0),
        ("1hour", 3600.0),
        ("2 Hours", 7200.0),
        ("30 sec", 30.0),
        ("1 day", 86400.0),
    ],
)
def test_a_duration_is_parsed_as_people_mean_it(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@given(st.integers(0, 10**9), st.sampled_from(sorted(SECONDS)))
def test_every_whole_duration_in_every_unit_is_exact(number: int, unit: str) -> None:
    assert parse_duration(f"{number}{unit}") == number * SECONDS[unit]


@given(
    st.integers(0, 2**70), st.sampled_from(sorted(BYTES)), st.sampled_from(["", "B", "b"]), st.sampled_from(["", " "])
)
def test_every_whole_size_in_every_unit_is_exact(number: int, unit: str, b: str, space: str) -> None:
    assert parse_size(f"{number}{space}{unit}{b}") == number * BYTES[unit]


def test_a_size_is_parsed_as_people_mean_it() -> None:
    assert (parse_size("8GiB"), parse_size("1.5k"), parse_size("512mib")) == (8 * 2**30, 1500, 512 * 2**20)


@pytest.mark.parametrize(
    "text", ["", "s", "-1", "1e3", "5 minuten", "nan", "inf", "1,5", "0x10", "5mm", "1 2", "9" * 400]
)
def test_an_invalid_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e3", "8GB8", "8 bytes", "1.k", "Ki"])
def test_an_invalid_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


@given(st.text())
def test_any_text_is_a_number_or_raises_value_error(text: str) -> None:
    for parse in (parse_duration, parse_size):
        try:
            value = parse(text)
        except ValueError:
            continue
        assert value >= 0
        assert math.isfinite(value)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0, "0.0 s"), (0.44, "0.4 s"), (9.94, "9.9 s"), (9.97, "10 s"), (59.4, "59 s"), (59.6, "1 min 0 s"),
     (200.0, "3 min 20 s"), (3599.7, "1 h 0 min"), (7500.0, "2 h 5 min")],
)  # fmt: skip
def test_a_duration_is_shown_in_a_readable_unit(seconds: float, shown: str) -> None:
    assert show_duration(seconds) == shown


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (12, "12 B"), (1023, "1023 B"), (3565158, "3.4 MiB"), (2**40, "1.0 TiB"), (2**50, "1024.0 TiB")],
)
def test_a_size_is_shown_in_a_readable_unit(size: float, shown: str) -> None:
    assert show_size(size) == shown


def test_one_of_anything_is_singular() -> None:
    assert [show_count(number, "failure") for number in (0, 1, 2)] == ["0 failures", "1 failure", "2 failures"]
