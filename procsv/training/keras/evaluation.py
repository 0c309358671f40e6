"""The evaluation at the end of an epoch: its place in its data, and the state of training while it lasts.

Used by fit.py.  An evaluation resets the metrics, which it shares with training, and may last for long.  So what training
has come to is kept at its beginning, as views: a run that is to end in its middle saves that, and evaluates again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from procsv.training.keras import private_epochs
from procsv.training.keras.position import Position, Saved
from procsv.training.keras.state import FitState, Plain


class Evaluation:
    """Those of one fit, one after the other."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._position: Position | None = None
        self._saved: Saved | None = None  # where the first one is to begin
        self._values: Any = None
        self.place: Plain | None = None  # of training, while one lasts

    def read(self) -> Any:
        """The place in its data, as plain values; None before the first one."""
        if self._position is None:
            return msgspec.to_builtins(self._saved, builtin_types=(bytes,))
        return msgspec.to_builtins(self._position.read(), builtin_types=(bytes,))

    def go_to(self, saved: Any) -> None:
        self._saved = msgspec.convert(saved, Saved | None)

    def follow_data(self) -> None:
        """At its beginning: Keras makes the iterator of its data before the first one, and keeps it."""
        if self._position is not None:
            return
        epochs = private_epochs.evaluation_data(self._model)
        if epochs is None:
            return
        self._position, saved = Position(epochs, "replay"), self._saved
        if saved is not None:  # each iterator that was made moves the seed of a shuffle on
            self._position.make_again(saved.made)

    @property
    def can_undo(self) -> bool:
        return self._values is not None

    def begin(self, state: FitState, place: Plain) -> None:
        self._values, self.place = state.hold(), place

    def undo(self, state: FitState) -> None:
        """Everything is as it was at its beginning.  The program is about to end: an evaluation does not go on from here."""
        state.put_held(self._values)

    def end(self) -> None:
        self._values = self.place = None
