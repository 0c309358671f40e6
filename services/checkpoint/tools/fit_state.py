"""State of a fit of Keras that is no variable, and whose state each variable is: for a comparison of two.  Pure.

Used by compare.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from procsv.base.plain_values import decode, is_same

PLACE_KEY = "procsv/place/.ATTRIBUTES/py_state"  # as procsv/training/keras/state.py has it
_RANKS = ("model", "optimizer", "seed", "metric", "History", "callback", "random", "position")
_ATTRIBUTE = "/.ATTRIBUTES/"


class Name(msgspec.Struct, frozen=True):
    """What a key of a checkpoint is called, and whose state it is ("": not known)."""

    name: str
    owner: str

    @property
    def rank(self) -> int:
        return _RANKS.index(self.owner) if self.owner in _RANKS else len(_RANKS)


class FitPlaces:
    """Those of two fits, as their checkpoints hold them."""

    def __init__(self, first: bytes, second: bytes) -> None:
        self._first, self._second = decode(first), decode(second)
        self._names: dict[str, list[str]] = self._first.get("names") or {}
        self._order = {key: number for number, key in enumerate(self._names)}

    def name(self, key: str) -> Name:
        owner, name = self._names.get(key, ("", key.partition(_ATTRIBUTE)[0]))
        return Name(name, owner)

    def order(self, key: str) -> int:
        """Where a variable stands among those of the fit."""
        return self._order.get(key, len(self._order))

    def differences(self) -> list[Name]:
        """The parts that are not the same in both."""
        found = dict.fromkeys(_compare(_parts(self._first), _parts(self._second)))
        return sorted(found, key=lambda name: (name.rank, name.name))


def _parts(place: dict[str, Any]) -> dict[Name, Any]:
    parts: dict[Name, Any] = {}
    for number, (kind, state) in enumerate(place["callbacks"]):
        plain = {key: saved[-1] for key, saved in state["kept"].items()} if _is_read(state) else state
        if kind == "History":
            parts[Name("History", "History")] = plain
            continue
        values = plain if isinstance(plain, dict) else {"state": plain}
        # What tells of the clock is another one each time.
        parts |= {
            Name(f"{kind} {number + 1}: {key}", "callback"): v for key, v in values.items() if "time" not in str(key)
        }
    parts |= {Name(f"{key} generator", "random"): value for key, value in place["random"].items()}
    position = ("fit", "epoch", "batch", "steps", "stop", "data", "evaluation")
    return parts | {Name(key, "position"): place[key] for key in position}


def _is_read(state: Any) -> bool:
    """Whether procsv has read it; otherwise the callback has given it."""
    return isinstance(state, dict) and "kept" in state


def _compare(first: dict[Name, Any], second: dict[Name, Any]) -> Iterator[Name]:
    for name in (*first, *second):
        if name not in first or name not in second or not is_same(first[name], second[name]):
            yield name
