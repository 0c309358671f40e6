"""Number the fits of a process, and keep each fit's progress: all of its state that is not in
variables.

Fits are numbered in order, for each directory. A fit that an exception ended keeps its number,
because the program may call it again, and then it resumes where it was. backup.py asks for the
number when a fit begins, and fit.py reports what happened in it. fit_start.py uses the progress,
too. `read_place` returns the progress for a snapshot (the fit's *place*), and `put_back_progress`
restores it. The module also has a fit's options and its evaluations.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, MutableMapping
from typing import Any, Literal

import msgspec

from procsv.base.outcome import FitPlace
from procsv.ipc.messaging.checkpoint_messages import KEEP_NEVER_HOURS, CheckpointPlan
from procsv.training.keras import private
from procsv.training.keras.callback_variables import find_saved
from procsv.training.keras.callbacks import (
    check_callbacks,
    counts_of,
    find_lost_model,
    kinds_of,
    mark_again,
    read_callbacks,
    read_model,
    watched,
    write_callbacks,
    write_model,
)
from procsv.training.keras.epochs import Epochs, evaluation_data
from procsv.training.keras.fit_identity import FitIdentity, has_ended, identify
from procsv.training.keras.position import DataPosition, Mode, Saved
from procsv.training.keras.private import read_random, write_random
from procsv.training.keras.state import FitState, Plain
from procsv.training.runtime.log import log

# Why a fit ended before its last epoch. "": it did not. "run": the run was ending. "decided": a callback ended it, and
# says so (see `has_decided`). "asked": something else set `model.stop_training`.
Stop = Literal["", "run", "decided", "asked"]


SAVE_S = 600.0  # between periodic checkpoints
# For how many keys to remember how many fits have begun with them. A forgotten key is counted from 1 again. The end of
# the earlier fit with this key is normally forgotten by then, because ENDED_MAX is smaller.
BEGUN_MAX = 10_000
ENDED_MAX = 1000  # remembered ends of earlier fits
# The models whose last fit was restored at its end. Most such fits are not trained again, so the training function is
# not traced. The values: this function, and which layers the fit trained.
_untraced: MutableMapping[Any, tuple[Callable[[], Any], list[bool]]] = weakref.WeakKeyDictionary()


class Options(msgspec.Struct, frozen=True):
    """The options of a BackupAndRestore."""

    prefix: str  # of the checkpoints' paths
    save_freq: int | str
    data: Mode
    max_to_keep: int
    keeps_callbacks: bool
    snapshot_s: float | None

    def make_plan(self) -> CheckpointPlan:
        return CheckpointPlan(
            save_path=self.prefix,
            latest_filename="checkpoint",
            save_secs=SAVE_S,
            max_to_keep=self.max_to_keep,
            keep_every_n_hours=KEEP_NEVER_HOURS,
            pad_step_number=False,
            save_relative_paths=True,
            meta_path="",
            lists_times=True,
        )


# -- the fits of a process ------------------------------------------------------------------------------------
class FitKind(msgspec.Struct, frozen=True):
    """What distinguishes two fits before there are variables."""

    name: str  # the directory, as the program names it
    layers: list[str]
    optimizer: str
    data: list[int | None]
    weights: list[tuple[tuple[int | None, ...], str]] | None  # None: the model is not built yet

    def is_same(self, other: FitKind) -> bool:
        """Return whether both may describe one fit. An unbuilt model may get any weights."""
        return msgspec.structs.replace(self, weights=None) == msgspec.structs.replace(other, weights=None) and (
            None in (self.weights, other.weights) or self.weights == other.weights
        )


def kind_of(name: str, model: Any, data: list[int | None]) -> FitKind:
    """Describe a fit. `data` is its position's shape. The number of epochs may vary."""
    weights = [(tuple(w.shape), str(w.dtype)) for w in model.weights] if private.is_built(model) else None
    return FitKind(name, private.layer_kinds(model), type(model.optimizer).__qualname__, data, weights)


class Series:
    """The fits of one directory in this process."""

    def __init__(self) -> None:
        self.number = 0  # of the newest fit
        self.is_again = False  # the newest fit has begun before, and raised
        self.keys: list[str] = []  # of the newest fit's calls
        self.ended: list[str] = []  # keys of the fits that have ended, in earlier attempts too
        self.has_removed = False  # the end of a fit was removed, to make room
        self._open: FitKind | None = None  # what kind of fit the newest is, until it has ended
        self._begun: dict[str, int] = {}  # how many fits have begun with each key; the newest key is last

    def begin_fit(self, kind: FitKind | None) -> None:
        """Begin a fit. `kind` is None if the fit is not to resume when it is called again after an
        exception.
        """
        before, self._open = self._open, kind
        self.is_again = before is not None and kind is not None and kind.is_same(before)
        if self.is_again:
            return
        if before is not None and kind is not None and kind.name == before.name:
            log.warning("procsv: this fit starts from its beginning: it is not the fit that an exception ended")
        self.number += 1
        self.keys = []

    def add_key(self, key: str) -> str:
        """Give the newest fit its key, and return it.

        A later fit that starts in exactly the same way is another fit, and gets another key.
        """
        count = self._begun.pop(key, 0) + (not self.is_again)
        self._begun[key] = count
        if len(self._begun) > BEGUN_MAX:
            del self._begun[next(iter(self._begun))]
        key = key if count <= 1 else f"{key}-{count}"
        if key not in self.keys:
            self.keys.append(key)
        return key

    def end_fit(self) -> None:
        """Note that the newest fit has ended without an exception."""
        self._open = None
        self.ended = [*(key for key in self.ended if key not in self.keys), *self.keys][-ENDED_MAX:]


class FitNumbers:
    """The series of this process, by the directory of their states."""

    def __init__(self) -> None:
        self._series: dict[str, Series] = {}

    def begin_fit(self, directory: str, kind: FitKind | None) -> Series:
        """Begin a fit in the series of `directory`, and return the series."""
        series = self._series.setdefault(directory, Series())
        series.begin_fit(kind)
        return series


# -- one fit --------------------------------------------------------------------------------------------------
class Evaluation:
    """The evaluations of one fit, which take place at the ends of its epochs.

    An evaluation resets the metrics, which it shares with training, and it may take long. So the
    state of training is held at its beginning, as views. A run that must end during an evaluation
    saves that state, and the next attempt repeats the evaluation.
    """

    def __init__(self, model: Any, training: DataPosition) -> None:
        self._model, self._training = model, training
        self._position: DataPosition | None = None
        self._saved: Saved | None = None  # the position in the validation data at which the first evaluation begins
        self._values: Any = None  # of training's variables, during an evaluation; None if they are not held
        self.place: Plain | None = None  # of training, during an evaluation

    def read_evaluation(self) -> Any:
        """Return the position in the validation data as plain values.

        Before the first evaluation, this is the position that `go_to` set; None if it set none.
        """
        if self._position is None:
            return msgspec.to_builtins(self._saved, builtin_types=(bytes,))
        return msgspec.to_builtins(self._position.read_position(), builtin_types=(bytes,))

    def go_to(self, saved: Any) -> None:
        self._saved = msgspec.convert(saved, Saved | None)

    def follow_data(self) -> None:
        """Track the position in the validation data, from the first evaluation of the fit on.

        Keras makes the EpochIterator of these data before the first evaluation, and keeps it.
        """
        if self._position is not None:
            return
        epochs = evaluation_data(self._model)
        if epochs is None:
            return
        self._position, saved = DataPosition(epochs, "replay"), self._saved
        if saved is not None and self._training.shared is not None:
            self._position.made += saved.made  # `enumerate_steps` of training makes them again, from the shared part
        elif saved is not None:  # each iterator that is made advances the seed of a shuffle
            keep = self._training.read_outside()
            self._position.make_again(saved.made)
            self._training.write_outside(keep)

    @property
    def can_undo(self) -> bool:
        return self._values is not None

    def begin_evaluation(self, state: FitState, place: Plain) -> None:
        self._values, self.place = state.hold_values(), place

    def undo_evaluation(self, state: FitState) -> None:
        """Restore the variables as they were when the evaluation began. `place` has the rest.

        The program is about to end.
        """
        state.put_held(self._values)

    def end_evaluation(self) -> None:
        self._values = self.place = None


class FitProgress:
    """The progress of one call of `fit`."""

    def __init__(self, options: Options, callbacks: Any, own: Any, epochs: Epochs, series: Series) -> None:
        self._options, self._own, self._model, self._epochs = options, own, own.model, epochs
        self._callbacks = [one for one in callbacks.callbacks if one is not own] if options.keeps_callbacks else []
        self._all_callbacks = [one for one in callbacks.callbacks if one is not own]
        self._series = series
        self.identity: FitIdentity
        self._settings = b""  # of `identity`; a hot standby reads and restores a place before it has an identity
        if series.is_again:
            mark_again(watched(self._callbacks, self._model))
        self._other_calls: list[list[str]] = []  # the kinds of callbacks in other calls of this fit
        self._results = self._model._get_metrics_result_or_logs  # Keras' own; `put_back_progress` may replace it
        self.number = series.number
        self.last_epoch = int(callbacks.params.get("epochs") or 1) - 1
        self.position = DataPosition(epochs, options.data)
        self.evaluation = Evaluation(self._model, self.position)
        self.epoch, self.batch = 0, -1  # the last trained batch of this epoch; -1: none yet
        self._step: tuple[Any, list[bool]] = (None, [])  # the training function, and which layers it trains
        self.is_over = False
        self.stop: Stop = ""
        self.launch_s = 0.0  # when the launch was asked for; 0.0 without a launch
        self.steps = self.base = 0  # batches of this fit; of all fits before it

    def read_step(self) -> int:
        return self.base + self.steps

    def read_fit(self) -> FitPlace:
        """Return number, epoch and batch for the heartbeat. May be called on any thread."""
        batches = self._epochs.batches_in_epoch or 0
        return FitPlace(self.number, self.epoch + 1, self.last_epoch + 1, self.batch + 1, batches)

    def identify(self, call: dict[str, Any]) -> None:
        """Identify the fit when it begins. `call` holds the arguments of `fit`."""
        call = {**call, "batch_size": self.position.batch_size}
        if call.get("validation_steps") is None:
            self.position.share_with(call.get("validation_data"))
        made = identify(self._model, self.last_epoch + 1, self.position.shape, call, self._all_callbacks)
        self.identity = FitIdentity(made.settings, self._series.add_key(made.key))
        self.position.draw_from(made.generators)
        self._settings = self.identity.encode()

    # -- a snapshot ------------------------------------------------------------------------------------------
    def find_variables(self) -> dict[str, list[Any]]:
        """Return the variables that the callbacks hold, by a name that the next attempt knows."""
        return find_saved(self._callbacks, counts_of)

    def read_place(self, names: dict[str, list[str]] | None) -> Plain:
        """Return all progress as plain values; during an evaluation, the progress at its beginning.

        `names`: `name_variables()` if the fit is over, else None.
        """
        if self.evaluation.place is not None:
            return self.evaluation.place
        position = self.position.read_position()
        return {
            "fit": self.number,
            "epoch": self.epoch,
            "batch": self.batch,
            "over": self.is_over,
            "steps": self.steps,
            "base": self.base,
            "stop": self.stop,
            "launch": self.launch_s,
            "data": msgspec.to_builtins(position, builtin_types=(bytes,)),
            "evaluation": self.evaluation.read_evaluation(),
            "callbacks": read_callbacks(self._callbacks),
            "model": read_model(self._model),
            "trainable": [self._step[1], private.read_trainable(self._model)],
            "calls": self._other_calls,
            "random": read_random(),
            "keys": list(self._series.keys),
            "identity": self._settings,
            "ended": list(self._series.ended),
            "names": names,
        }

    def find_lost_model(self, place: Plain) -> str:
        """Return where a ModelCheckpoint saves, if the fit at `place` had saved a model and there
        is none at this path now.

        Return "" if no model is lost.
        """
        return find_lost_model(self._callbacks, place["callbacks"])

    # -- the way back ----------------------------------------------------------------------------------------
    def go_on_from(self, place: Plain, is_past: bool = False) -> None:
        """Take over the step count of the state, and have the fit begin at the epoch to train next.

        Call it before the first epoch. Raise UserError if the fit cannot continue from `place`.
        `is_past`: a later fit has begun, so this one has ended.
        """
        self._check_callbacks(place)
        self.position.check_data(msgspec.convert(place["data"], Saved))
        self.base, self.steps = place["base"], place["steps"]
        is_stopped = place["stop"] in ("decided", "asked") and (is_past or has_ended(place, self.launch_s))
        if place["over"] and (is_stopped or place["epoch"] >= self.last_epoch):
            private.begin_at(self._model, self.last_epoch + 1)  # nothing is left to train
        else:
            private.begin_at(self._model, place["epoch"] + place["over"])

    def _check_callbacks(self, place: Plain) -> None:
        """Check that the callbacks match the saved ones.

        If an exception ended the fit and the program called it again, the second call may have had
        other callbacks. After a restart the program may be at either call. So the callbacks of both
        are accepted.
        """
        now, before = kinds_of(self._callbacks), [kind for kind, _ in place["callbacks"]]
        calls = [list(kinds) for kinds in place.get("calls", [])]
        check_callbacks(self._callbacks, place["callbacks"], [*calls, now] if self._series.is_again else calls)
        self._other_calls = [kinds for kinds in [*calls, before] if kinds != now]

    def put_back_progress(self, place: Plain) -> None:
        """Restore the progress.

        Call it after restoring the variables, and after Keras' resets at the start of an epoch.
        """
        is_over = place["over"]
        self._own.go_to(place["epoch"] + is_over, 0 if is_over else max(0, place["batch"]))
        write_callbacks(self._callbacks, place["callbacks"], is_over)
        write_model(self._model, place.get("model", {}))
        write_random(place["random"])
        saved = msgspec.convert(place["data"], Saved)
        self.evaluation.go_to(place["evaluation"])
        evaluations_made = place["evaluation"]["made"] if place["evaluation"] else ()
        if is_over or self._options.data == "none":
            self.position.go_to(msgspec.structs.replace(saved, is_done=False), -1, evaluations_made)
            return
        self.batch = place["batch"]
        self.position.go_to(saved, self.batch, evaluations_made)
        if self.batch >= 0:  # the epoch may end without another batch, and then Keras has no logs for it
            results, model = self._results, self._model
            private.replace_results(model, lambda logs: results(logs) if logs else model.get_metrics_result())

    def put_back_trainable(self, place: Plain, trace: Callable[[], object]) -> None:
        """Restore which layers are trained. `trace` traces the training function.

        Keras traces the function at the first step. What a callback changes later counts only in a
        function that is made later. So trace the function before restoring such changes.
        """
        model = self._model
        step, now = place.get("trainable", ([], []))
        is_new = bool(step) and step != private.read_trainable(model)
        if is_new:
            private.write_trainable(model, step)
            model.make_train_function(force=True)
        if (is_new or step != now or place.get("model")) and not model.run_eagerly:
            trace()
        elif place["over"]:  # most such fits are not trained again, so do not trace in vain: see `trace_as_earlier_fit`
            _untraced[model] = (weakref.ref(model.train_function), step)
        self._step = (model.train_function, step or private.read_trainable(model))
        if now:
            private.write_trainable(model, now)

    def trace_as_earlier_fit(self, trace: Callable[[], object]) -> None:
        """Trace the training function with the layers that an earlier fit of the model trained.

        Without a crash, that fit would have traced the function. Keras would then ignore which
        layers the program has frozen since, until the program compiles the model again.
        """
        model, now = self._model, private.read_trainable(self._model)
        function, step = _untraced.pop(model, (lambda: None, []))
        if step and step != now and function() is model.train_function and not model.run_eagerly:
            private.write_trainable(model, step)
            trace()
            private.write_trainable(model, now)

    # -- an early end ----------------------------------------------------------------------------------------
    def has_decided(self) -> bool:
        """Return whether a callback says, as EarlyStopping does, that this epoch is the last."""
        return self.epoch > 0 and any(getattr(one, "stopped_epoch", None) == self.epoch for one in self._all_callbacks)

    # -- steps -----------------------------------------------------------------------------------------------
    def note_step(self) -> None:
        """After a step, and before the callbacks see it, note what a new training function trains."""
        if self._model.train_function is not self._step[0]:
            self._step = (self._model.train_function, private.read_trainable(self._model))

    def begin_epoch(self, epoch: int) -> None:
        self.epoch, self.batch, self.position.is_done = epoch, -1, False

    def end_batch(self, batch: int) -> int:
        """Note the end of a batch, and return how many batches were trained since the last call."""
        made = batch - self.batch
        self.batch = batch
        self.steps += made
        return made
