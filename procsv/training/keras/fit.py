"""One fit under procsv, from its first hook to its last.

Called by hooks.py, on the thread that fits.  The state of a fit is put back at the end of its first `on_epoch_begin`: after all
that Keras and the callbacks reset at its start.  It is captured at the end of `on_train_batch_end`, when all callbacks have seen
the step, and between two epochs at the end of the next `on_epoch_begin`, whose doings belong to it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec

from procsv.base import exit_codes
from procsv.base.errors import UserError
from procsv.base.outcome import FitPlace
from procsv.ipc.messaging.messages import Durable
from procsv.training.eager.controller import EagerController
from procsv.training.keras import private
from procsv.training.keras.callbacks import (
    check_callbacks,
    kinds_of,
    read_callbacks,
    read_random,
    write_callbacks,
    write_random,
)
from procsv.training.keras.ended_fits import EndedFits, Print, find_difference, take_print
from procsv.training.keras.evaluation import Evaluation
from procsv.training.keras.file_writer import FileWriter, sweep
from procsv.training.keras.logged_files import LoggedFiles
from procsv.training.keras.options import Options
from procsv.training.keras.position import Position, Saved
from procsv.training.keras.random_ops import look_for_counting_ops
from procsv.training.keras.rehearsal import rehearse_step
from procsv.training.keras.state import FitState, Found, Plain
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.log import log
from procsv.training.snapshots.restore_client import FRESH, Origin
from procsv.training.snapshots.snapshot_queue import SnapshotRequest


class Fit:
    """procsv's side of one call of `fit`."""

    def __init__(
        self,
        runtime: Runtime,
        options: Options,
        callbacks: Any,
        own: Any,
        epochs: Any,
        number: int,
        is_again: bool,
        note_end: Callable[[], None],
    ) -> None:
        """`callbacks`: Keras' list, in which `own` is ours; `epochs`: the fit's EpochIterator.

        `is_again`: an exception has ended the fit in this process, and the program calls it once more.  `note_end` is called
        when it has ended.
        """
        self._runtime, self._options, self._model, self._number = runtime, options, own.model, number
        self._is_again, self._note_end = is_again, note_end
        self._other_calls: list[list[str]] = []  # of this fit: the kinds of their callbacks
        self.files = FileWriter(runtime)
        self._logged = LoggedFiles(())
        self._own = own
        self._callbacks = [one for one in callbacks.callbacks if one is not own] if options.keeps_callbacks else []
        self._last_epoch = int(callbacks.params.get("epochs") or 1) - 1
        self._position = Position(epochs, options.data)
        self._epochs = epochs
        self._evaluation = Evaluation(self._model)
        self._calls = 0  # batches that are no steps
        self._epoch, self._batch = 0, -1
        self._is_over = False
        self._steps = self._base = 0  # batches of this fit; of all before it
        self._since_saved = 0  # batches
        self._restored: Found | None = None  # to be put back
        self._is_repeated = False  # it had ended when the state was saved, and is made again
        self._is_first_epoch = self._is_first_batch = True
        self._results = self._model._get_metrics_result_or_logs
        self._ended = EndedFits(runtime.paths.home / "fits")
        self._saved: Durable | None = None  # the newest checkpoint
        self._controller = EagerController(
            runtime, options.make_plan(), options.snapshot_s, self._make_source, self._note_durable
        )
        self._state: FitState | None = None
        self._origin: Origin = FRESH

    def _make_source(self) -> FitState:
        if self._state is None:
            self._state = FitState(
                self._model,
                self._controller.plan,
                self._number,
                self._read_place,
                self._read_step,
                self._build,
                self._count_calls,
                self.files,
            )
        return self._state

    @property
    def model(self) -> Any:
        return self._model

    def _read_step(self) -> int:
        return self._base + self._steps

    def _count_calls(self) -> int:
        return self._calls

    def _read_fit(self) -> FitPlace:
        """For the heartbeat; any thread."""
        batches = self._epochs.num_batches or 0
        return FitPlace(self._number, self._epoch + 1, self._last_epoch + 1, self._batch + 1, batches)

    def _read_place(self) -> Plain:
        if self._evaluation.place is not None:
            return self._evaluation.place
        position = self._position.read()
        return {
            "fit": self._number,
            "epoch": self._epoch,
            "batch": self._batch,
            "over": self._is_over,
            "steps": self._steps,
            "base": self._base,
            "stop": bool(self._model.stop_training),
            "data": msgspec.to_builtins(position, builtin_types=(bytes,)),
            "evaluation": self._evaluation.read(),
            "callbacks": read_callbacks(self._callbacks),
            "calls": self._other_calls,
            "random": read_random(),
            "print": self._take_print() if self._is_over else None,
            "names": self._make_source().name_variables() if self._is_over else None,
        }

    # -- beginning -------------------------------------------------------------------------------------------
    def begin(self, logged: LoggedFiles) -> None:
        """At the end of `on_train_begin`: finds the newest state, and says at which epoch Keras begins."""
        self._logged = logged
        if self._runtime.gate is not None:  # a hot standby, which sleeps where it enters the run
            rehearse_step(self._model, self._epochs, self._make_source())
        self._controller.enter_run()
        sweep(self._runtime)
        try:
            how = self._find_state()
            self._runtime.note(
                "fit_begun", fit=self._number, model=self._model.name, epochs=self._last_epoch + 1, how=how
            )
        except BaseException:
            self._controller.leave_run()
            raise

    def _find_state(self) -> str:
        """How it begins, for the journal."""
        source = self._make_source()
        self._origin = self._controller.find_state(source)
        found = source.found
        if found is None:
            self._ended.forget_from(self._number)
            return "fresh"
        place = found.place
        if place["fit"] == self._number:
            self._go_on_from(found)
            self._ended.forget_from(self._number)
            return "resumed"
        self._origin = FRESH
        if place["fit"] < self._number:
            self._base = place["base"] + place["steps"]
            self._ended.forget_from(self._number)
            return "fresh"
        return self._make_again(place)

    def _make_again(self, later: Plain) -> str:
        """This fit had ended when a later one was interrupted: it is brought to its end, if it is the same one still."""
        number, path = self._number, self._ended.find(self._number)
        if path is None:
            self._is_repeated = True
            text = "fit %d had ended when fit %d was interrupted: it is made again, without snapshots, and fit %d goes on then"
            log.warning(f"procsv: {text}", number, later["fit"], later["fit"])
            return "again"
        self._build()
        found = Found(path)
        changed = find_difference(found.place["print"], self._take_print())
        if not changed:
            self._is_repeated = True
            log.info("procsv: fit %d had ended: it is brought to its end", number)
            self._go_on_from(found)
            return "ended"
        log.warning("procsv: fit %d is another one than at the last start (%s): it begins anew", number, changed)
        self._ended.forget_from(number)
        self._base = later["base"] + later["steps"]  # so that its states are the newest ones
        return "fresh"

    def _take_print(self) -> Print:
        return take_print(self._model, self._last_epoch + 1, self._position.shape)

    def _build(self) -> None:
        """Makes all variables, before there is a batch: there is a state to put into them."""
        try:
            private.build(self._model, private.element_spec(self._epochs))
        except Exception as error:
            why = str(error).partition("\n")[0]
            raise UserError(
                f"the state of the last start cannot be put back: {type(self._model).__qualname__} is not built, and Keras cannot "
                f"build it without data ({why}); call model.build(input_shape) before fit"
            ) from error
        self._make_source().track_variables()

    def _go_on_from(self, found: Found) -> None:
        place = found.place
        self._check_callbacks(place)
        self._position.check(msgspec.convert(place["data"], Saved))
        self._restored = found
        self._base, self._steps = place["base"], place["steps"]
        if place["over"] and (place["stop"] or place["epoch"] >= self._last_epoch):
            private.begin_at(self._model, self._last_epoch + 1)  # there is nothing left to do
        else:
            private.begin_at(self._model, place["epoch"] + place["over"])

    def _check_callbacks(self, place: Plain) -> None:
        """A call after an exception may have other callbacks, and the next start may come to either call."""
        now, before = kinds_of(self._callbacks), [kind for kind, _ in place["callbacks"]]
        calls = [list(kinds) for kinds in place.get("calls", [])]
        check_callbacks(self._callbacks, place["callbacks"], [*calls, now] if self._is_again else calls)
        self._other_calls = [kinds for kinds in [*calls, before] if kinds != now]

    def begin_epoch(self, epoch: int) -> None:
        """At the end of `on_epoch_begin`."""
        self._epoch, self._batch, self._position.is_done = epoch, -1, False
        if self._is_first_epoch:
            self._is_first_epoch = False
            self._put_back()
            self._runtime.read_fit = self._read_fit
            self._controller.start_with(self._make_source(), self._origin, has_snapshots=not self._is_repeated)
            return
        self._make_source().track_variables()
        if self._options.save_freq == "epoch":
            self._ask()
        self._end_step()

    def _put_back(self) -> None:
        found, self._restored = self._restored, None
        if found is None:
            self._logged.begin_anew()
            return
        place = found.place
        self._own.go_to(place["epoch"] + place["over"], 0 if place["over"] else max(0, place["batch"]))
        self._logged.go_on()
        self._make_source().put_back(found)
        write_callbacks(self._callbacks, place["callbacks"], place["over"])
        write_random(place["random"])
        self._model.stop_training = place["stop"] and not place["over"]
        saved = msgspec.convert(place["data"], Saved)
        self._evaluation.go_to(place["evaluation"])
        if place["over"] or self._options.data == "none":
            self._position.go_to(saved, -1)
            return
        self._batch = place["batch"]
        self._position.go_to(saved, self._batch, is_last=place["stop"])
        if self._batch >= 0:  # the epoch may end without another batch, and Keras would have no logs of it
            results, model = self._results, self._model
            private.replace_results(model, lambda logs: results(logs) if logs else model.get_metrics_result())

    def _note_durable(self, news: Durable) -> None:
        self._saved = news

    # -- steps -----------------------------------------------------------------------------------------------
    def end_batch(self, batch: int) -> None:
        """At the end of `on_train_batch_end`."""
        made = batch - self._batch
        self._batch = batch
        self._steps += made
        self._since_saved += made
        if self._is_first_batch:
            self._is_first_batch = False
            self._make_source().track_variables()
            look_for_counting_ops(self._model)
        if isinstance(self._options.save_freq, int) and self._since_saved >= self._options.save_freq:
            self._ask()
        self._end_step()

    def count_batch(self) -> None:
        """A batch of an evaluation or a prediction has ended: training is no further, but nothing hangs."""
        self._calls += 1

    # -- evaluations -----------------------------------------------------------------------------------------
    def begin_evaluation(self) -> None:
        """Before `on_test_begin`, and before the metrics are reset: all steps of the epoch have ended."""
        self._evaluation.follow_data()
        self._position.is_done = True
        self._evaluation.begin(self._make_source(), self._read_place())
        if self._runtime.stop_reason is not None:
            self._stop()

    def end_test_batch(self) -> None:
        if self._runtime.stop_reason is not None and self._evaluation.can_undo:
            self._evaluation.undo(self._make_source())
            self._stop()

    def end_evaluation(self) -> None:
        self._evaluation.end()

    # -- saving ----------------------------------------------------------------------------------------------
    def _ask(self) -> None:
        """A checkpoint of the state at the step that ends now."""
        self._since_saved = 0
        training = self._controller.training
        if training is not None and training.snapshots is not None:
            training.snapshots.request(SnapshotRequest("periodic"))

    def _end_step(self) -> None:
        training = self._controller.training
        assert training is not None, "on_epoch_begin comes first"
        training.boundary.end_step()
        if self._runtime.stop_reason is not None:
            self._stop()

    def _stop(self) -> None:
        """The run is to end: the state of this step is saved, and the program ends here."""
        self._controller.finish()
        self._leave_run()
        print(
            f"procsv: saved at step {self._read_step()}; the fit goes on from here at the next start", file=sys.stderr
        )
        raise SystemExit(exit_codes.RESUMABLE)

    # -- the end ---------------------------------------------------------------------------------------------
    def end_training(self) -> None:
        """Before `on_train_end` of the callbacks: a fit with no epoch left has its state put back here."""
        self._put_back()

    def end(self) -> None:
        """After `on_train_end`: the state at the end is saved, so that a start after it has nothing to do again."""
        self._is_over = True
        self._note_end()
        self._leave_model()
        training = self._controller.training
        deletes = self._own.delete_checkpoint and self._runtime.observer is not None
        if training is not None and not deletes and not self._is_repeated:
            training.boundary.end_step()
            self._controller.finish()
            if self._saved is not None and self._saved.step == self._read_step():
                self._ended.keep(self._number, self._saved.path)
        self._controller.end_training()
        self._leave_run()
        if deletes:
            self._own.delete_backups()

    def _leave_model(self) -> None:
        """The next fit of this model is as Keras has it."""
        place = self._read_fit()
        self._runtime.read_fit = lambda: place
        private.begin_at(self._model, None)
        self._model.__dict__.pop("_get_metrics_result_or_logs", None)

    def abandon(self) -> None:
        """The fit has raised: what counts is the newest snapshot."""
        self._leave_model()
        self._controller.end_training()
        self._leave_run()

    def _leave_run(self) -> None:
        self.files.wait_placed()
        self._controller.leave_run()
