"""Number the fits of a process, and know one that is called again after an exception.

Asked by backup.py when a fit begins.  Fits are numbered in their order, for each directory.  A fit that an exception has ended keeps its
number: the program may call it again, and it goes on where it was.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from procsv.training.keras import private
from procsv.training.runtime.log import log

ENDED_MAX = 1000  # of the fits that ended before, no more are known again


class Kind(msgspec.Struct, frozen=True):
    """What tells a fit from another one before there are variables."""

    name: str  # the directory that the program names
    layers: list[str]
    optimizer: str
    data: list[int | None]
    weights: list[tuple[tuple[int | None, ...], str]] | None  # None: the model is not built yet

    def is_same(self, other: Kind) -> bool:
        """Whether both may be of one fit: an unbuilt model may come to be either."""
        return msgspec.structs.replace(self, weights=None) == msgspec.structs.replace(other, weights=None) and (
            None in (self.weights, other.weights) or self.weights == other.weights
        )


def kind_of(name: str, model: Any, data: list[int | None]) -> Kind:
    """`data`: the shape of its position; the number of epochs may be another one at each call."""
    weights = [(tuple(w.shape), str(w.dtype)) for w in model.weights] if private.is_built(model) else None
    return Kind(name, private.layer_kinds(model), type(model.optimizer).__qualname__, data, weights)


class Series:
    """The fits of one directory, in this process."""

    def __init__(self) -> None:
        self.number = 0  # of the newest fit
        self.is_again = False  # it was begun before, and has raised
        self.keys: list[str] = []  # of its calls
        self.ended: list[str] = []  # keys of the fits that had ended, in earlier attempts too
        self.has_removed = False  # the end of one, to keep within bounds
        self._open: Kind | None = None  # of the newest fit, until it has ended
        self._begun = Counter[str]()

    def begin_fit(self, kind: Kind | None) -> None:
        """A fit begins.  `kind` None: the program never calls it again."""
        before, self._open = self._open, kind
        self.is_again = before is not None and kind is not None and kind.is_same(before)
        if self.is_again:
            return
        if before is not None and kind is not None and kind.name == before.name:
            log.warning("procsv: this fit begins anew: it is not the fit that an exception has ended")
        self.number += 1
        self.keys = []

    def add_key(self, key: str) -> str:
        """Gives the newest fit its key.  A fit that is made again from the same start is another one, and has another key."""
        if not self.is_again:
            self._begun[key] += 1
        count = self._begun[key]
        key = key if count <= 1 else f"{key}-{count}"
        if key not in self.keys:
            self.keys.append(key)
        return key

    def end_fit(self) -> None:
        """The newest fit has ended, and no exception has ended it."""
        self._open = None
        self.ended = [*(key for key in self.ended if key not in self.keys), *self.keys][-ENDED_MAX:]


class FitNumbers:
    """The series of this process, by the directory in which the states are."""

    def __init__(self) -> None:
        self._series: dict[str, Series] = {}

    def begin_fit(self, directory: str, kind: Kind | None) -> Series:
        """The series in which a fit begins."""
        series = self._series.setdefault(directory, Series())
        series.begin_fit(kind)
        return series
