"""The beginning of a fit: from its newest state, from that of its end, or anew.

Used by fit.py, at the end of `on_train_begin`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from procsv.base.errors import UserError
from procsv.training.eager.controller import EagerController
from procsv.training.keras.building import build_model
from procsv.training.keras.ended_fits import EndedFits
from procsv.training.keras.fit_identity import Decision, Recorded, decide, find_unseen
from procsv.training.keras.fit_numbers import Series
from procsv.training.keras.progress import FitProgress
from procsv.training.keras.state import FitState, Found, Plain
from procsv.training.runtime.log import log, say
from procsv.training.snapshots.restore_client import FRESH, Origin


class FitStart:
    """Of one fit."""

    def __init__(
        self,
        model: Any,
        epochs: Any,
        progress: FitProgress,
        series: Series,
        controller: EagerController,
        ended: EndedFits,
        make_source: Callable[[], FitState],
    ) -> None:
        self._model, self._epochs, self._progress, self._series = model, epochs, progress, series
        self._controller, self._ended, self._make_source = controller, ended, make_source
        self.origin: Origin = FRESH
        self.found: Found | None = None  # to be put back
        self.is_repeated = False  # it had ended when the state was saved, and is made again
        self._decided: tuple[Decision, str] = (Decision.TRAIN, "")

    def is_of_this_fit(self, place: Plain) -> bool:
        """Whether a state at `place` is put back into this fit."""
        series = self._series
        self._decided = decide(
            Recorded.of(place, self._progress.launch_s), self._progress.identity, series.number, series.is_again
        )
        return self._decided[0] in (Decision.RESUME, Decision.END)

    def find_state(self) -> str:
        """How it begins, for the journal."""
        source = self._make_source()
        self.origin = self._controller.find_state(source)
        found = source.found
        if found is None:
            return "fresh"
        recorded, (decision, why) = Recorded.of(found.place, self._progress.launch_s), self._decided
        self._series.ended = recorded.ended if not self._series.ended else self._series.ended
        if decision is Decision.RESUME:
            self._go_on_from(found)
        elif decision is Decision.END:
            self._say_ended()
            self._go_on_from(found)
        else:
            self.origin = FRESH
            if decision is Decision.LOOK:
                return self._make_again(found.place)
            self._progress.base = found.place["base"] + found.place["steps"]  # so that its states are the newest ones
            self._say_trained(recorded, why)
        return str(decision.value)

    def _say_ended(self) -> None:
        say(f"fit {self._series.number} had ended: not trained again")

    def _say_trained(self, recorded: Recorded, why: str) -> None:
        number = self._series.number
        if recorded.number == number:
            ending = ", and is trained again" if recorded.is_over else ": it is trained from its beginning"
            say(f"fit {number} is not certainly the one of the last start ({why}){ending}")
        elif not recorded.is_over:
            say(
                f"fit {number} of this start is none that was saved: it is trained, and the state of an unfinished fit is given up"
            )

    def _make_again(self, later: Plain) -> str:
        """This fit had ended when a later one was interrupted: it is brought to its end, if that is kept."""
        identity, number = self._progress.identity, self._series.number
        path = self._ended.find(self._series.keys[-1]) if identity.is_proof else None
        if path is not None:
            self.build()
            self.is_repeated = True
            self._say_ended()
            self._go_on_from(Found(path), is_past=True)
            return "ended"
        self.is_repeated = True
        why = "its end is no longer kept" if identity.is_proof else find_unseen(identity)
        then = "" if later["over"] else ", and the fit that was interrupted is resumed after it"
        log.warning("procsv: fit %d had ended: %s", number, why)
        say(f"fit {number} had ended, but {why}: it is trained again, without snapshots{then}")
        return "again"

    def _go_on_from(self, found: Found, is_past: bool = False) -> None:
        """`is_past`: the program went on to a later fit, so this one had ended, whatever stopped it."""
        keys = [key for key in found.place["keys"] if key not in self._series.keys]
        self._series.keys[:0] = keys
        self._progress.go_on_from(found.place, is_past)
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
