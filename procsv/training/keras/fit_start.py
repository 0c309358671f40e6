"""The beginning of a fit: from its newest state, from that of its end, or anew.

Used by fit.py, at the end of `on_train_begin`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from procsv.base.errors import UserError
from procsv.training.eager.controller import EagerController
from procsv.training.keras.building import build_model
from procsv.training.keras.ended_fits import EndedFits, find_difference
from procsv.training.keras.progress import FitProgress
from procsv.training.keras.state import FitState, Found, Plain
from procsv.training.runtime.log import log
from procsv.training.snapshots.restore_client import FRESH, Origin


class FitStart:
    """Of one fit."""

    def __init__(
        self,
        model: Any,
        epochs: Any,
        progress: FitProgress,
        controller: EagerController,
        ended: EndedFits,
        make_source: Callable[[], FitState],
    ) -> None:
        self._model, self._epochs, self._progress = model, epochs, progress
        self._controller, self._ended, self._make_source = controller, ended, make_source
        self.origin: Origin = FRESH
        self.found: Found | None = None  # to be put back
        self.is_repeated = False  # it had ended when the state was saved, and is made again

    def find_state(self) -> str:
        """How it begins, for the journal."""
        source, number = self._make_source(), self._progress.number
        self.origin = self._controller.find_state(source)
        found = source.found
        if found is None:
            self._ended.forget_from(number)
            return "fresh"
        place = found.place
        if place["fit"] == number:
            self._go_on_from(found)
            self._ended.forget_from(number)
            return "resumed"
        self.origin = FRESH
        if place["fit"] < number:
            self._progress.base = place["base"] + place["steps"]
            self._ended.forget_from(number)
            return "fresh"
        return self._make_again(place)

    def _make_again(self, later: Plain) -> str:
        """This fit had ended when a later one was interrupted: it is brought to its end, if it is the same one still."""
        number = self._progress.number
        path = self._ended.find(number)
        if path is None:
            self.is_repeated = True
            text = "fit %d had ended when fit %d was interrupted: it is made again, without snapshots, and fit %d goes on then"
            log.warning(f"procsv: {text}", number, later["fit"], later["fit"])
            return "again"
        self.build()
        found = Found(path)
        changed = find_difference(found.place["print"], self._progress.take_print())
        if not changed:
            self.is_repeated = True
            log.info("procsv: fit %d had ended: it is brought to its end", number)
            self._go_on_from(found)
            return "ended"
        log.warning("procsv: fit %d is another one than at the last start (%s): it begins anew", number, changed)
        self._ended.forget_from(number)
        self._progress.base = later["base"] + later["steps"]  # so that its states are the newest ones
        return "fresh"

    def _go_on_from(self, found: Found) -> None:
        self._progress.go_on_from(found.place)
        self.found = found

    def build(self) -> None:
        """Makes all variables, before there is a batch: there is a state to put into them."""
        try:
            build_model(self._model, self._epochs)
        except Exception as error:
            why = str(error).partition("\n")[0]
            raise UserError(
                f"the state of the last start cannot be put back: {type(self._model).__qualname__} is not built, and Keras cannot "
                f"build it without data ({why}); call model.build(input_shape) before fit"
            ) from error
        self._make_source().track_variables()

    def take_found(self) -> Found | None:
        """What is to be put back; None if it is already, or there is nothing."""
        found, self.found = self.found, None
        return found
