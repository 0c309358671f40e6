"""Numbers of the fits of a program, by which a fit knows its state again.

Asked by backup.py when a fit begins, and told when one has ended.  Fits are numbered in their order, in each directory.  One that
an exception has ended keeps its number: the program may call it again, and it goes on where it was.
"""

from __future__ import annotations

from typing import Any

import msgspec

from procsv.training.keras import private
from procsv.training.runtime.log import log


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


class FitNumbers:
    """Those of this process, by the directory in which the states are."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._open: dict[str, Kind] = {}  # of the newest fit, until it has ended

    def begin_fit(self, directory: str, kind: Kind | None) -> tuple[int, bool]:
        """The number of a fit that begins, and whether it was begun before.  `kind` None: it is never called again."""
        before = self._open.pop(directory, None)
        is_again = before is not None and kind is not None and kind.is_same(before)
        if before is not None and kind is not None and kind.name == before.name and not is_again:
            log.warning("procsv: this fit begins anew: it is not the fit that an exception has ended")
        if not is_again:
            self._newest[directory] = self._newest.get(directory, 0) + 1
        if kind is not None:
            self._open[directory] = kind
        return self._newest[directory], is_again

    def end_fit(self, directory: str) -> None:
        """The fit that was begun last has ended, and no exception has ended it."""
        self._open.pop(directory, None)
