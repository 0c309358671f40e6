"""Rehearsal of a hot standby: a training step of its own, so that the first one as the trainer is neither traced nor compiled.

Called by fit.py, at the beginning of the program's first fit, before the standby sleeps.  The step gets zeros in the shape of
a batch, from a dataset of its own: an iterator of the program's would move the seed of a shuffle on.  All variables and random
generators are put back, for there may be no state to restore; where there is one, that overwrites them.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import tensorflow as tf

from procsv.training.keras import private, private_epochs
from procsv.training.keras.callbacks import read_random, write_random
from procsv.training.keras.state import FitState

BATCH = 32  # where nobody knows the size: it matters to XLA alone, which then compiles once more


def rehearse_step(model: Any, epochs: Any, state: FitState) -> None:
    """A step of `model` whose data come from the EpochIterator `epochs`.  What keeps it from being made is said, and no harm."""
    if not private.is_built(model) or not private.is_alone(model):
        return  # its first weights are drawn by the first step; or each replica has a batch of its own
    began_s, random = time.monotonic(), read_random()
    private.build(model, private_epochs.element_spec(epochs))
    state.track_variables()
    held = state.hold()
    if held is None:
        return
    try:
        model.train_function(
            iter(_zeros_like(private_epochs.element_spec(epochs), private_epochs.batch_size(epochs) or BATCH))
        )
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
