"""Begin a fit: from its newest state, from the state at its end, or anew.

Used by fit.py, at the end of `on_train_begin`.  After a crash in a later fit the program comes to the earlier ones again: each is
brought to its end from what EndedFits keeps.  Variables that the first step would make are made before there is a batch, for the state
that is to be put into them; a hot standby makes a step of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from procsv.base.errors import UserError
from procsv.base.location import lasting_path
from procsv.base.system import disk
from procsv.training.eager.controller import EagerController
from procsv.training.keras import private
from procsv.training.keras.epochs import Epochs
from procsv.training.keras.fit_identity import Decision, Recorded, decide, find_unseen
from procsv.training.keras.private import read_random, write_random
from procsv.training.keras.progress import FitProgress, Series
from procsv.training.keras.state import FitState, FoundState, Plain
from procsv.training.runtime.log import log, say
from procsv.training.snapshots.restore_client import FRESH, Origin

CHECKPOINTS_MAX = 4  # of the newest one's size; then the oldest state goes
SMALL_BYTES = 16 << 20  # less room than this is nobody's trouble

_DATA = ".data-00000-of-00001"
_NAME = re.compile(r"fit-(\d+)-([0-9a-f-]+)\.index")  # the step of its end, and its key


class EndedFits:
    """The ends of the fits of one program, in `directory`.

    A state is a checkpoint's files under the key of its fit, linked, so that retention leaves them alone.  All states together take as
    much room as a few checkpoints; older ones are removed, and those fits are trained again if the program comes to them.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find_end(self, key: str) -> str | None:
        """Return the final checkpoint of the fit with this key, if all of it can be read."""
        found = [path for _, known, path in self._list() if known == key]
        if not found:
            return None
        path = lasting_path(str(found[-1]))
        try:
            reader = tf.train.load_checkpoint(path)
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
        except (tf.errors.OpError, ValueError, LookupError, RuntimeError, OSError) as error:
            log.warning("procsv: the state at the end of a fit, %s, cannot be read: %s", path, error)
            return None
        return path

    def keep_end(self, key: str, step: int, checkpoint: str) -> int:
        """Keeps the files of `checkpoint`, which is on disk, and removes the oldest states that are too many; how many those were.

        Killed in here: there is no index, or all is there.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        for suffix in (_DATA, ".index"):
            new = self._directory / f".new{suffix}"
            new.unlink(missing_ok=True)
            try:
                os.link(checkpoint + suffix, new)
            except OSError:  # a filesystem without links
                shutil.copyfile(checkpoint + suffix, new)
                disk.fsync_path(new)
            disk.rename(new, self._directory / f"fit-{step:012d}-{key}{suffix}")
        removed = self._remove_oldest()
        disk.fsync_path(self._directory)
        return removed

    def _remove_oldest(self) -> int:
        states = [(path, _size_of(path)) for _, _, path in self._list()]
        room = max(SMALL_BYTES, CHECKPOINTS_MAX * states[-1][1])
        removed = 0
        while sum(size for _, size in states) > room:
            path, _ = states.pop(0)
            Path(f"{path}.index").unlink(
                missing_ok=True
            )  # killed here: data without an index, which the next call removes
            removed += 1
        named = {f"{path.name}{_DATA}" for path, _ in states}
        for data in self._directory.glob(f"fit-*{_DATA}"):
            if data.name not in named:
                data.unlink(missing_ok=True)
        return removed

    def _list(self) -> list[tuple[int, str, Path]]:
        """Step, key and path of each, the oldest first."""
        names = [(match, path) for path in self._directory.glob("fit-*.index") if (match := _NAME.fullmatch(path.name))]
        return sorted((int(match[1]), match[2], path.with_suffix("")) for match, path in names)


def _size_of(path: Path) -> int:
    return sum(
        Path(f"{path}{suffix}").stat().st_size for suffix in (_DATA, ".index") if Path(f"{path}{suffix}").exists()
    )


class FitStart:
    """Of one fit."""

    def __init__(
        self,
        model: Any,
        epochs: Epochs,
        progress: FitProgress,
        series: Series,
        controller: EagerController,
        ended: EndedFits,
        make_source: Callable[[], FitState],
    ) -> None:
        self._model, self._epochs, self._progress, self._series = model, epochs, progress, series
        self._controller, self._ended, self._make_source = controller, ended, make_source
        self.origin: Origin = FRESH
        self.found: FoundState | None = None  # to be put back
        self.is_repeated = False  # it had ended when the state was saved, and is made again
        self._decided: tuple[Decision, str] = (Decision.TRAIN, "")

    def is_of_this_fit(self, place: Plain) -> bool:
        """Whether a state at `place` is put back into this fit."""
        series = self._series
        self._decided = decide(
            Recorded.from_place(place, self._progress.launch_s), self._progress.identity, series.number, series.is_again
        )
        return self._decided[0] in (Decision.RESUME, Decision.END)

    def find_state(self) -> str:
        """How it begins, for the journal."""
        source = self._make_source()
        self.origin = self._controller.find_state(source)
        found = source.found
        if found is None:
            return "fresh"
        recorded, (decision, why) = Recorded.from_place(found.place, self._progress.launch_s), self._decided
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
        path = self._ended.find_end(self._series.keys[-1]) if identity.is_proof else None
        if path is not None:
            self.build()
            self.is_repeated = True
            self._say_ended()
            self._go_on_from(FoundState(path), is_past=True)
            return "ended"
        self.is_repeated = True
        why = "its end is no longer kept" if identity.is_proof else find_unseen(identity)
        then = "" if later["over"] else ", and the fit that was interrupted is resumed after it"
        log.warning("procsv: fit %d had ended: %s", number, why)
        say(f"fit {number} had ended, but {why}: it is trained again, without snapshots{then}")
        return "again"

    def _go_on_from(self, found: FoundState, is_past: bool = False) -> None:
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

    def take_found(self) -> FoundState | None:
        """What is to be put back; None if it is already, or there is nothing."""
        found, self.found = self.found, None
        return found


# -- the variables that the first step would make ----------------------------------------------------------------
def build_model(model: Any, epochs: Epochs) -> None:
    """Makes the variables of `model`, whose data are `epochs`; the exception says why that cannot be.

    Keras builds a model by its `call`.  A `train_step` of the program's own may need none, and may have optimizers and metrics that only
    it knows: it is traced, as its first step would trace it, and not executed.
    """
    spec = epochs.element_spec
    try:
        private.build(model, spec)
    except Exception:
        if not _trace_step(model, spec):
            raise
        return
    if private.has_own_step(model):
        _trace_step(model, spec)


def _trace_step(model: Any, spec: Any) -> bool:
    """Whether a training step of `model` could be traced with batches like `spec`."""
    if not private.is_alone(model):
        return False
    functions = private.training_functions(model)
    try:
        if functions:
            # An iterator of the program's data would move the seed of a shuffle on.
            nothing = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=spec)
            functions[0].get_concrete_function(iter(nothing))
        else:  # it runs eagerly
            tf.function(model.train_step, autograph=False).get_concrete_function(spec)
    except Exception:  # noqa: BLE001  the program's own step, which will say itself what it lacks
        return False
    return True


# -- the step of a hot standby -----------------------------------------------------------------------------------
BATCH = 32  # where nobody knows the size: it matters to XLA alone, which then compiles once more


def warm_up_step(model: Any, epochs: Epochs, state: FitState) -> None:
    """A step of `model` whose data are `epochs`, so that the first one as the trainer is neither traced nor compiled.

    At the beginning of the program's first fit, before the standby sleeps.  It gets zeros in the shape of a batch, from a dataset of its
    own: an iterator of the program's would move the seed of a shuffle on.  All variables and random generators are put back, for there
    may be no state to restore.  What keeps it from being made is said, and no harm.
    """
    if not private.is_built(model) or not private.is_alone(model):
        return  # its first weights are drawn by the first step; or each replica has a batch of its own
    began_s, random = time.monotonic(), read_random()
    private.build(model, epochs.element_spec)
    state.track_variables()
    held = state.hold_values()
    if held is None:
        return
    try:
        model.train_function(iter(_zeros_like(epochs.element_spec, epochs.batch_size or BATCH)))
    except Exception as error:  # noqa: BLE001  the program's own step, on zeros that it was not made for
        why = str(error).partition("\n")[0]
        print(f"procsv: no step could be rehearsed: {why}", file=sys.stderr)
    else:
        print(f"procsv: a step was rehearsed in {time.monotonic() - began_s:.1f} s", file=sys.stderr)
    finally:
        state.put_held(held)
        write_random(random)


def _zeros_like(spec: Any, batch: int) -> Any:
    """A dataset without end, of elements of that spec: what is not known of their shapes stays so."""
    for one in tf.nest.flatten(spec):
        if type(one) is not tf.TensorSpec or one.shape.rank is None:
            raise ValueError(f"elements of {one} cannot be made up")

    def zeros(one: Any) -> Any:
        sizes = [size if size is not None else batch if axis == 0 else 1 for axis, size in enumerate(one.shape)]
        return tf.zeros(sizes, one.dtype)

    def forget_size(tensor: Any, one: Any) -> Any:
        return tf.compat.v1.placeholder_with_default(tensor, one.shape)

    def forget_sizes(*element: Any) -> Any:
        whole = element if isinstance(spec, tuple) else element[0]
        return tf.nest.map_structure(forget_size, whole, spec)

    return tf.data.Dataset.from_tensors(tf.nest.map_structure(zeros, spec)).map(forget_sizes).repeat()
