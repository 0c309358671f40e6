"""Begin a fit: from the newest state, from the fit's own final state, or from scratch.

fit.py calls this at the end of `on_train_begin`. After a crash in a later fit, the restarted
program calls the earlier fits again. If EndedFits still has the final state of such a fit, that
state is restored, and the fit is not trained again. Restoring needs variables that only the first
step would create, so this module creates them before the first batch. A hot standby warms up with
one step on made-up data.
"""

from __future__ import annotations

import os
import re
import shutil
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

# All kept states together may take CHECKPOINTS_MAX times the size of the newest one, or SMALL_BYTES if that is more. If
# they take more, the oldest are removed.
CHECKPOINTS_MAX = 4
SMALL_BYTES = 16 << 20

_DATA = ".data-00000-of-00001"
_NAME = re.compile(r"fit-(\d+)-([0-9a-f-]+)\.index")  # the step of the fit's end, and the fit's key


class EndedFits:
    """The final states of one program's fits, in `directory`.

    Each state is a checkpoint of the fit. Its files are hard links (or copies) under the fit's key,
    so they survive when checkpoint rotation deletes the checkpoint. CHECKPOINTS_MAX limits the room
    that all states take together, and the oldest are removed first. If the program calls a fit
    whose state was removed, the fit is trained again.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find_end(self, key: str) -> str | None:
        """Return the final checkpoint of the fit with this key; None if any part cannot be read."""
        found = [path for _, known, path in self._list() if known == key]
        if not found:
            return None
        path = lasting_path(str(found[-1]))
        try:
            reader = tf.train.load_checkpoint(path)
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
        except (tf.errors.OpError, ValueError, LookupError, RuntimeError, OSError) as error:
            log.warning("procsv: the final state of a fit, %s, cannot be read: %s", path, error)
            return None
        return path

    def keep_end(self, key: str, step: int, checkpoint: str) -> int:
        """Keep the files of `checkpoint`. Remove the oldest states over the limit; return how many.

        A kill in here leaves the new state complete or missing. It may leave data without an index,
        which do not count as a state. The next call removes them.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        for suffix in (_DATA, ".index"):
            new = self._directory / f".new{suffix}"
            new.unlink(missing_ok=True)
            try:
                os.link(checkpoint + suffix, new)
            except OSError:  # the filesystem has no hard links
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
            # A kill after the next line leaves data without an index, which the next call of keep_end removes.
            Path(f"{path}.index").unlink(missing_ok=True)
            removed += 1
        named = {f"{path.name}{_DATA}" for path, _ in states}
        for data in self._directory.glob(f"fit-*{_DATA}"):
            if data.name not in named:
                data.unlink(missing_ok=True)
        return removed

    def _list(self) -> list[tuple[int, str, Path]]:
        """Return the step, key and path of each state, the oldest first."""
        names = [(match, path) for path in self._directory.glob("fit-*.index") if (match := _NAME.fullmatch(path.name))]
        return sorted((int(match[1]), match[2], path.with_suffix("")) for match, path in names)


def _size_of(path: Path) -> int:
    return sum(
        Path(f"{path}{suffix}").stat().st_size for suffix in (_DATA, ".index") if Path(f"{path}{suffix}").exists()
    )


class FitStart:
    """Finds where one fit begins."""

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
        self.found: FoundState | None = None  # still to be restored
        self.is_repeated = False  # this fit had ended, and the newest state is a later fit's
        self._decided: tuple[Decision, str] = (Decision.TRAIN, "")  # about the newest state, and why
        # Where this fit saves its model, if the fit had ended and saved one, but there is none at this path now. Then
        # the fit is trained again. Otherwise "".
        self._lost = ""

    def decide_on(self, place: Plain) -> bool:
        """Decide what to do with the newest state. `place` is the state's place (see fit.py).

        Keep the decision for find_state. Return whether to restore the state into this fit.
        """
        series, recorded = self._series, Recorded.from_place(place, self._progress.launch_s)
        self._decided = decide(recorded, self._progress.identity, series.number, series.is_again)
        if self._decided[0] is Decision.ENDED and (lost := self._progress.find_lost_model(place)):
            self._decided, self._lost = (Decision.TRAIN, ""), lost
        return self._decided[0] in (Decision.RESUME, Decision.ENDED)

    def find_state(self) -> str:
        """Find the state to begin with, and return the kind of start for the journal."""
        source = self._make_source()
        self.origin = self._controller.find_state(source)  # calls `decide_on` for the state that it finds
        found = source.found
        if found is None:
            return "fresh"
        recorded, (decision, why) = Recorded.from_place(found.place, self._progress.launch_s), self._decided
        self._series.ended = recorded.ended if not self._series.ended else self._series.ended
        if decision is Decision.RESUME:
            self._go_on_from(found)
        elif decision is Decision.ENDED:
            self._say_ended()
            self._go_on_from(found)
        else:
            self.origin = FRESH
            if decision is Decision.ENDED_EARLIER:
                return self._restore_or_retrain(found.place)
            # Step numbers continue after the other fit's, so that the new states are the newest.
            self._progress.base = found.place["base"] + found.place["steps"]
            self._say_trained(recorded, why)
        return str(decision.value)

    def _say_ended(self) -> None:
        say(f"fit {self._series.number} had already ended, so procsv does not train it again")

    def _say_trained(self, recorded: Recorded, why: str) -> None:
        number = self._series.number
        if self._lost:
            say(
                f"fit {number} had already ended, but there is no model file at {self._lost}, so procsv trains the fit "
                "again"
            )
        elif recorded.number == number:
            how = "again" if recorded.is_over else "from its beginning"
            say(f"fit {number} may differ from fit {number} of the previous attempt ({why}), so it is trained {how}")
        elif not recorded.is_over:
            say(
                f"fit {number} is not the fit that was interrupted: it is trained from its beginning, and the "
                "interrupted fit is not resumed"
            )

    def _restore_or_retrain(self, later: Plain) -> str:
        """Restore the final state of a fit that ended before a later fit began, or train it again.

        The newest state belongs to the later fit, and `later` is its place. It must stay the newest
        until the program reaches that fit again. So no snapshots of this fit are taken.
        """
        identity, number = self._progress.identity, self._series.number
        path = self._ended.find_end(self._series.keys[-1]) if identity.is_certain else None
        found = FoundState(path) if path is not None else None
        lost = self._progress.find_lost_model(found.place) if found is not None else ""
        if found is not None and not lost:
            self.build(found.place)
            self.is_repeated = True
            self._say_ended()
            self._go_on_from(found, is_past=True)
            return "ended"
        self.is_repeated = True
        why = "its final state is not kept" if identity.is_certain else find_unseen(identity)
        why = f"there is no model file at {lost}" if lost else why
        then = "" if later["over"] else "; the interrupted fit resumes after it"
        log.warning("procsv: fit %d had already ended, but %s", number, why)
        say(f"fit {number} had already ended, but {why}, so procsv trains it again, without snapshots{then}")
        return "again"

    def _go_on_from(self, found: FoundState, is_past: bool = False) -> None:
        """Begin from `found`. `is_past`: a later fit has begun, so this one has ended."""
        keys = [key for key in found.place["keys"] if key not in self._series.keys]
        self._series.keys[:0] = keys
        self._progress.go_on_from(found.place, is_past)
        self.found = found

    def build(self, place: Plain) -> None:
        """Create all variables before the first batch.

        `place` comes from the state to restore. If that state has variables that belong only to the
        training step, trace the step, which creates them here.
        """
        try:
            build_model(self._model, self._epochs)
        except Exception as error:
            why = str(error).partition("\n")[0]
            raise UserError(
                f"the saved state cannot be restored: {type(self._model).__qualname__} is not built, and "
                f"Keras cannot build it without data ({why}); call model.build(input_shape) before fit"
            ) from error
        is_traced = place.get("step", False) and trace_step(self._model, self._epochs.element_spec)
        self._make_source().track_step(is_traced)

    def take_found(self) -> FoundState | None:
        """Return the state still to be restored, once; None if there is none."""
        found, self.found = self.found, None
        return found


# -- the variables that the first step would create ---------------------------------------------------------------
def build_model(model: Any, epochs: Epochs) -> None:
    """Create the variables of `model` for batches of the shape that `epochs` has.

    If Keras cannot build the model, raise Keras' exception. Keras builds a model by tracing its
    `call`. But a custom `train_step` might not use `call`, and might have its own optimizers and
    metrics. So a custom step is traced, as its first execution would do, but not executed. As in a
    real step, the compiled optimizer gets variables only if the step uses it.
    """
    spec = epochs.element_spec
    is_traced = private.has_own_step(model) and trace_step(model, spec)
    try:
        private.build(model, spec, with_optimizer=not is_traced)
    except Exception:
        if not is_traced and not trace_step(model, spec):
            raise


def trace_step(model: Any, spec: Any) -> bool:
    """Trace a training step of `model` for batches like `spec`. Return whether that worked."""
    if not private.is_alone(model):
        return False
    functions = private.training_functions(model)
    try:
        if functions:
            # An iterator of the program's data would advance the seed of a shuffle.
            nothing = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=spec)
            functions[0].get_concrete_function(iter(nothing))
        else:  # the step runs eagerly
            tf.function(model.train_step, autograph=False).get_concrete_function(spec)
    except Exception:  # noqa: BLE001  if the step itself is wrong, the first real step will raise
        return False
    return True


# -- the step of a hot standby -----------------------------------------------------------------------------------
BATCH = 32  # the batch size to assume if it is unknown; after a wrong guess, XLA only has to compile once more


def warm_up_step(model: Any, epochs: Epochs, state: FitState) -> None:
    """Run one step of `model` on made-up data, so that the trainer's first step is neither traced
    nor compiled.

    Called at the beginning of the program's first fit, before the standby sleeps. The step gets
    zeros in the shape of a batch, from a dataset of its own, because an iterator of the program's
    data would advance the seed of a shuffle. Afterwards all variables and random generators get
    their previous values back: if there is no saved state, training starts from these. If the step
    fails, a log line says so, and the first real step is traced and compiled as usual.
    """
    # Not for an unbuilt model, because the step would draw its initial weights. Not under a strategy, because each
    # replica would need a batch of its own. Not for an eager step, because it is neither traced nor compiled.
    if not private.is_built(model) or not private.is_alone(model) or model.run_eagerly:
        return
    began_s, random = time.monotonic(), read_random()
    build_model(model, epochs)  # the layers are built, but the metrics and the optimizer may not be
    trace_step(model, epochs.element_spec)
    state.track_step()
    held = state.hold_values()
    if held is None:
        return
    try:
        model.train_function(iter(_zeros_like(epochs.element_spec, epochs.batch_size or BATCH)))
    except Exception as error:  # noqa: BLE001  the program's own step may fail on zeros
        why = str(error).partition("\n")[0]
        say(f"could not rehearse a step: {why}")
    else:
        say(f"rehearsed a step in {time.monotonic() - began_s:.1f} s")
    finally:
        state.put_held(held)
        write_random(random)


def _zeros_like(spec: Any, batch: int) -> Any:
    """Return an endless dataset of zeros like `spec`, with unknown sizes where `spec` has them."""
    for one in tf.nest.flatten(spec):
        if type(one) is not tf.TensorSpec or one.shape.rank is None:
            raise ValueError(f"procsv cannot make a sample element of {one}")

    def zeros(one: Any) -> Any:
        sizes = [size if size is not None else batch if axis == 0 else 1 for axis, size in enumerate(one.shape)]
        return tf.zeros(sizes, one.dtype)

    def forget_size(tensor: Any, one: Any) -> Any:
        return tf.compat.v1.placeholder_with_default(tensor, one.shape)

    def forget_sizes(*element: Any) -> Any:
        whole = element if isinstance(spec, tuple) else element[0]
        return tf.nest.map_structure(forget_size, whole, spec)

    return tf.data.Dataset.from_tensors(tf.nest.map_structure(zeros, spec)).map(forget_sizes).repeat()
