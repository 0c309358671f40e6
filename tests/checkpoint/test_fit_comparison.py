"""A comparison of two fits' final states names the parts that differ and their owners."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from procsv.base.plain_values import encode
from procsv.services.checkpoint.tools.compare import FitPlaces, Name


def place(**changes: Any) -> bytes:
    found: dict[str, Any] = {
        "fit": 1,
        "epoch": 2,
        "batch": -1,
        "steps": 30,
        "stop": False,
        "data": {"made": [10, 10]},
        "evaluation": None,
        "callbacks": [
            *callbacks(),
        ],
        "random": {"python": (3, (1, 2)), "numpy": ("MT19937", np.arange(3)), "eager": None},
        "names": {"a/.ATTRIBUTES/VARIABLE_VALUE": ["seed", "dropout/seed"]},
    }
    return encode(found | changes)


def callbacks(wait: int = 1, loss: float = 0.5, start_time: float = 17.0) -> list[tuple[str, Any]]:
    early = {"wait": wait, "best": np.float32(0.5), "start_time": start_time}
    history = {"history": {"loss": [1.0, loss]}}
    return [(kind, read(values)) for kind, values in (("EarlyStopping", early), ("History", history))]


def read(values: dict[str, Any]) -> dict[str, Any]:
    """Read a callback as procsv does: each value follows its initial one."""
    kept = {name: (None, None, True, "", value) for name, value in values.items()}
    return {"kept": kept, "settings": {}, "files": {}}


CHANGES: list[tuple[dict[str, Any], list[Name]]] = [
    ({}, []),
    ({"callbacks": callbacks(start_time=99.0)}, []),
    ({"callbacks": callbacks(wait=2)}, [Name("EarlyStopping 1: wait", "callback")]),
    ({"callbacks": callbacks(loss=0.25)}, [Name("History", "History")]),
    (
        {"random": {"python": (3, (1, 9)), "numpy": ("MT19937", np.arange(3)), "eager": None}},
        [Name("python generator", "random")],
    ),
    ({"data": {"made": [10, 9]}}, [Name("data", "position")]),
]


@pytest.mark.parametrize(("changes", "wanted"), CHANGES)
def test_each_part_that_differs_is_named_with_its_owner(changes: dict[str, Any], wanted: list[Name]) -> None:
    assert FitPlaces(place(), place(**changes)).differences() == wanted


def test_a_variable_is_named_as_people_know_it() -> None:
    places = FitPlaces(place(), place())
    assert places.name("a/.ATTRIBUTES/VARIABLE_VALUE") == Name("dropout/seed", "seed")
    assert places.name("b/c/.ATTRIBUTES/VARIABLE_VALUE") == Name("b/c", "")
