"""Run one fit under procsv, from its first hook to its last.

hooks.py calls a Fit on the thread that trains. The saved state is restored at the end of the first
`on_epoch_begin`, after Keras and the callbacks have reset what they reset there. A snapshot is
taken at the end of `on_train_batch_end`, when all callbacks have seen the step. A snapshot between
two epochs is taken at the end of the next `on_epoch_begin`, so that it includes what the callbacks
change there.

Throughout this package, the *place* of a fit is all of its state that is not in variables: epoch,
batch, position in the data, callbacks, random state. A dictionary of plain values holds it.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from procsv.base import exit_codes
from procsv.base.journal.entries import FitBegun
from procsv.base.journal.file import read_program_pids
from procsv.base.outcome import Loss
from procsv.ipc.messaging.checkpoint_messages import Durable
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.eager.controller import EagerController
from procsv.training.keras import private
from procsv.training.keras.callbacks import LoggedFiles
from procsv.training.keras.epochs import Epochs
from procsv.training.keras.file_writer import FileWriter, sweep
from procsv.training.keras.fit_start import CHECKPOINTS_MAX, EndedFits, FitStart, trace_step, warm_up_step
from procsv.training.keras.progress import FitProgress, Options, Series
from procsv.training.keras.state import FitState, Plain, look_for_counting_ops
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.log import say, say_once
from procsv.training.snapshots.snapshot_queue import SnapshotRequest

# How long to wait for the link's thread to turn a signal into a stop request.
NOTICE_S_MAX = 0.5


def handles_itself(notices: Iterable[int]) -> bool:
    """Return whether the program has its own handler for one of these signals."""
    handlers = [signal.getsignal(number) for number in notices]
    return any(callable(one) and not (getattr(one, "__module__", None) or "").startswith("procsv.") for one in handlers)


def read_loss(logs: Any, step: int) -> Loss | None:
    """Return the loss in the logs of a batch. Keras shows the mean over the epoch so far."""
    value = logs.get("loss") if isinstance(logs, Mapping) else None
    try:
        loss = math.nan if value is None else float(value)
    except (TypeError, ValueError):  # a list, with one value for each replica
        return None
    return Loss("loss", step, loss) if math.isfinite(loss) else None


class Fit:
    """procsv's side of one call of `fit`."""

    def __init__(
        self,
        runtime: Runtime,
        options: Options,
        callbacks: Any,
        own: Any,
        epochs: Epochs,
        series: Series,
    ) -> None:
        """Prepare the fit.

        `callbacks` is Keras' CallbackList. `own` is our BackupAndRestore. If `--drop-in` protects a
        fit without a BackupAndRestore, `own` is not in the list. `epochs` is the fit's data.
        `series` has the fits of this directory; this fit is the newest of them.
        """
        self._runtime, self._options, self._own, self._epochs = runtime, options, own, epochs
        self.model = own.model
        self._series = series
        self.files = FileWriter(runtime)
        self._callbacks = callbacks.callbacks
        self._logged = LoggedFiles(())
        self._progress = FitProgress(options, callbacks, own, epochs, series)
        self._progress.position.on_replayed = self.count_batch
        self._untrained_batches = 0  # batches of evaluations and predictions, and replayed batches of the training data
        self._since_saved = 0  # batches since the last periodic checkpoint
        self._is_first_epoch = self._is_first_batch = True
        self._is_past_first = False  # the first step, which compiles, has ended
        self._ended = EndedFits(runtime.connection.paths.home / "fits")
        self._logs: Any = None  # of the last batch; on a GPU the values may still be on their way
        self._saved: Durable | None = None  # the newest checkpoint
        # The place of the found state, if it is from the end of an epoch. If no epoch is left to train, this is the
        # final place of the fit.
        self._found_end: Plain | None = None
        self._state: FitState | None = None
        self._controller = EagerController(
            runtime, options.make_plan(), options.snapshot_s, self._make_source, self._note_durable
        )
        self._start = FitStart(
            self.model, epochs, self._progress, series, self._controller, self._ended, self._make_source
        )

    def _make_source(self) -> FitState:
        if self._state is None:
            self._state = FitState(
                self.model,
                self._controller.plan,
                self._start.decide_on,
                self._read_place,
                self._progress.read_step,
                self._start.build,
                lambda: self._untrained_batches,
                self.files,
                self._progress.find_variables,
            )
        return self._state

    def _read_place(self) -> Plain:
        """Return the fit's place for a capture.

        Reading the loss waits for the batch, but so does the capture.
        """
        self._runtime.heartbeat.show_loss(read_loss(self._logs, self._progress.read_step()))
        state = self._state  # None while it is being made
        variables = {"variables": {} if state is None else state.specs}
        if self._found_end is not None and self._progress.is_over and self._is_first_epoch:
            return self._found_end | variables
        place = self._progress.read_place(self._make_source().name_variables() if self._progress.is_over else None)
        return place | {"step": state is not None and state.has_step_variables} | variables

    def _note_durable(self, news: Durable) -> None:
        self._saved = news

    # -- beginning -------------------------------------------------------------------------------------------
    def begin_fit(self, logged: LoggedFiles, call: dict[str, Any]) -> None:
        """At the end of `on_train_begin`, find the newest state and tell Keras its epoch.

        `call` holds the arguments of `fit`.
        """
        self._logged = logged
        if self._runtime.is_ahead:  # a hot standby: it sleeps in enter_run below
            warm_up_step(self.model, self._epochs, self._make_source())
        self._controller.enter_run()
        self._progress.launch_s = self._runtime.connection.start.asked_at
        sweep(self._runtime)
        self._progress.identify(call)
        try:
            how, progress = self._start.find_state(), self._progress
            begun = FitBegun(fit=progress.number, model=self.model.name, epochs=progress.last_epoch + 1, how=how)
            self._runtime.connection.note_entry(begun)
            if progress.number > 1 and not self._runtime.connection.start.has_local_logdir:
                say_once(
                    "procsv does not keep the final states of fits at a URL; after a crash, earlier fits are trained "
                    "again"
                )
        except BaseException:
            self._controller.leave_run()
            raise

    def put_back_end(self) -> bool:
        """After `on_epoch_begin`, restore the saved state if it is from the end of an epoch.

        Return whether it is. If it is, hooks.py calls the callbacks' `on_epoch_begin` once more, so
        that they begin the next epoch from that state.
        """
        found = self._start.found
        if not self._is_first_epoch or found is None or not found.place["over"]:
            return False
        self._put_back()
        self.model.reset_metrics()
        return True

    def begin_epoch(self, epoch: int) -> None:
        """At the end of `on_epoch_begin`, restore the state or end the previous epoch."""
        self._progress.begin_epoch(epoch)
        if self._is_first_epoch:
            self._is_first_epoch = False
            self._put_back()
            self._runtime.heartbeat.follow_fit(self._progress.read_fit)
            has_snapshots = not self._start.is_repeated
            self._controller.start_with(self._make_source(), self._start.origin, has_snapshots)
            self._runtime.heartbeat.take_phase_for_step()  # begin_step and leave_step mark where a step is under way
            return
        self._make_source().track_variables()
        if self._options.save_freq == "epoch":
            self._request_checkpoint()
        self._end_step()

    def _put_back(self) -> None:
        found = self._start.take_found()
        self._progress.trace_as_earlier_fit(self._trace_step)
        if found is None:
            self._logged.begin_anew()
            return
        self._logged.keep_contents()
        self._found_end = found.place if found.place["over"] else None
        self._make_source().put_back_state(found)
        self._logged.remove_repeated(
            found.place["callbacks"], lambda: read_program_pids(self._runtime.connection.paths.journal)
        )
        # A fit that was never killed traces its step before its callbacks change `trainable` or other attributes of the
        # model. So trace the step before such changes are restored.
        self._progress.put_back_trainable(found.place, self._trace_step)
        self._progress.put_back_progress(found.place)

    def _trace_step(self) -> None:
        trace_step(self.model, self._epochs.element_spec)

    # -- steps -----------------------------------------------------------------------------------------------
    def begin_step(self) -> None:
        """At the end of `on_train_batch_begin`, mark the start of a step."""
        if self._is_past_first:
            self._runtime.heartbeat.enter_phase(Phase.STEP)

    def leave_step(self) -> None:
        """Before the callbacks' `on_train_batch_end`, mark the end of a step."""
        self._progress.note_step()
        if self._is_past_first:
            self._runtime.heartbeat.enter_phase(Phase.PROGRAM)

    def end_batch(self, batch: int, logs: Any) -> None:
        """At the end of `on_train_batch_end`, count the batch and end the step."""
        self._logs = logs
        self._since_saved += self._progress.end_batch(self._epochs.last_batch_of(batch))
        if self._is_first_batch:
            self._is_first_batch = False
            self._make_source().track_step()
            look_for_counting_ops(self.model)
        if isinstance(self._options.save_freq, int) and self._since_saved >= self._options.save_freq:
            self._request_checkpoint()
        self._end_step()

    def count_batch(self) -> None:
        """Count a batch that is not trained, so that the watchdog sees that nothing hangs.

        Such a batch belongs to an evaluation or a prediction, or it is replayed after a restart.
        """
        self._untrained_batches += 1

    # -- evaluations -----------------------------------------------------------------------------------------
    def begin_evaluation(self) -> None:
        """Before `on_test_begin`, keep the state of training, to save it or to return to it.

        All steps of the epoch have ended, and the metrics are not reset yet.
        """
        evaluation = self._progress.evaluation
        evaluation.follow_data()
        self._progress.position.is_done = True
        if self.model.stop_training:
            return  # the fit resumes from the state before the stop request: see `_end_step`
        evaluation.begin_evaluation(self._make_source(), self._read_place())
        if self._runtime.stops.reason is not None:
            self._stop()

    def end_test_batch(self) -> None:
        evaluation = self._progress.evaluation
        if self._runtime.stops.reason is not None and evaluation.can_undo:
            evaluation.undo_evaluation(self._make_source())
            self._stop()

    def end_evaluation(self) -> None:
        self._progress.evaluation.end_evaluation()

    # -- saving ----------------------------------------------------------------------------------------------
    def _request_checkpoint(self) -> None:
        """Request a checkpoint of the state at the step that ends now."""
        self._since_saved = 0
        training = self._controller.training
        if training is not None and training.snapshots is not None:
            training.snapshots.request(SnapshotRequest("periodic"))

    def _end_step(self) -> None:
        """End a step, without ever saving a stop request as state.

        If the program or a callback stops the fit at this step, do not save the step: after a
        restart the program decides again, from the state before the step. If the program stops the
        fit because the run ends, save the step, but not the stop request: the next attempt will not
        stop here.
        """
        training = self._controller.training
        assert training is not None, "on_epoch_begin comes first"
        if self.model.stop_training and not self._is_run_ending():
            self._progress.stop = "asked"
            return
        if self.model.stop_training:
            # Save this step, but do not record that the fit has ended: the program stops it only because the run ends.
            self._progress.stop = "run"
            self._request_checkpoint()
        training.boundary.end_step()
        if training.is_ready:  # before that, the first step is under way, and may take any time
            self._is_past_first = True
            self._runtime.heartbeat.enter_phase(Phase.PROGRAM)
        if self._runtime.stops.reason is not None:
            self._stop()

    def _is_run_ending(self) -> bool:
        """Return whether the run is ending.

        A program that handles signals itself learns of a signal a moment before procsv does, so
        wait for that moment.
        """
        runtime, pause = self._runtime, threading.Event()
        if handles_itself(runtime.connection.start.settings.notice_signals):
            until_s = runtime.clock.monotonic() + NOTICE_S_MAX
            while not runtime.stops.is_asked and runtime.clock.monotonic() < until_s:
                pause.wait(NOTICE_S_MAX / 50)
        return runtime.stops.is_asked

    def _stop(self) -> None:
        """Save the state of this step and end the program, because the run was asked to end."""
        self._controller.save_last_state()
        self._leave_run()
        step = self._progress.read_step()
        say(f"saved at step {step}; the fit resumes from there at the next start")
        raise SystemExit(exit_codes.RESUMABLE)

    # -- the end ---------------------------------------------------------------------------------------------
    def finish_files_for_others(self, callback: Any) -> None:
        """Wait for the files that `callback` has just saved, if one of the program's callbacks
        follows it and may read them.
        """
        # -1: something outside of the list calls the callback.
        at = next((number for number, one in enumerate(self._callbacks) if one is callback), -1)
        if any(private.runs_code_of_the_program(one) for one in self._callbacks[at + 1 :]):
            self.files.wait_written()

    def end_training(self) -> None:
        """Before `on_train_end`, note why training ended.

        If no epoch was left to train, `begin_epoch` was never called, so restore the state here.
        """
        self._put_back()  # does nothing if `begin_epoch` has restored the state
        self._progress.position.end_untrained()
        self.files.wait_written()  # callbacks may read them at the end
        progress = self._progress
        asked, progress.stop = progress.stop, ""
        if self._is_first_epoch or not self.model.stop_training or progress.epoch >= progress.last_epoch:
            return
        if progress.has_decided():
            progress.stop = "decided"
        elif asked == "run":
            progress.stop = "run"
        elif asked or not self._is_run_ending():
            progress.stop = "asked"
        else:
            # The epoch is complete, so the next start continues with the one after it.
            progress.is_over, progress.stop = True, "run"
            training = self._controller.training
            assert training is not None, "an epoch has begun"
            self._request_checkpoint()
            training.boundary.end_step()
            if self._runtime.stops.reason is not None:
                self._stop()

    def end_fit(self) -> None:
        """After `on_train_end`, save the final state so that a later start skips this fit."""
        self._progress.is_over = True
        self._series.end_fit()
        self._leave_model()
        # `procsv launch` keeps the checkpoints, so that the same command finds that this fit has ended.
        deletes = self._own.delete_checkpoint and self._runtime.observer is not None
        if not deletes and not self._start.is_repeated and self._progress.stop != "run":
            self._save_end()
        self._controller.end_training()
        self._leave_run()
        if deletes:
            self._own.delete_backups()

    def _save_end(self) -> None:
        if self._controller.training is None:  # no epoch was left to train: the state that was found is the final one
            if self._found_end is None:
                return
            self._controller.start_with(self._make_source(), self._start.origin)
        training = self._controller.training
        assert training is not None
        training.boundary.end_step()
        self._controller.save_last_state()
        is_kept = self._runtime.connection.start.has_local_logdir  # begin_fit says that none is kept at a URL
        if is_kept and self._saved is not None and self._saved.step == self._progress.read_step():
            removed = self._ended.keep_end(self._series.keys[-1], self._saved.step, self._saved.path)
            if removed and not self._series.has_removed:
                self._series.has_removed = True
                say(
                    f"procsv keeps the final states of the newest fits, up to the size of {CHECKPOINTS_MAX} "
                    "checkpoints; after a crash, earlier fits are trained again"
                )

    def _leave_model(self) -> None:
        """Undo our changes to the model, so that its next fit is Keras' own."""
        place = self._progress.read_fit()
        self._runtime.heartbeat.follow_fit(lambda: place)
        private.begin_at(self.model, None)
        self.model.__dict__.pop("_get_metrics_result_or_logs", None)

    def abandon(self) -> None:
        """Leave a fit that raised, without saving. The fit resumes from its newest snapshot."""
        self._leave_model()
        self._controller.end_training()
        self._leave_run()

    def _leave_run(self) -> None:
        self.files.wait_written()
        self._controller.leave_run()
