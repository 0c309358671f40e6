"""Variables of a fit that its first step would make: made before there is a batch, for the state that is to be put into them.

Used by fit_start.py.  Keras builds a model by its `call`.  A `train_step` of the program's own may need none, and may have
optimizers and metrics that only it knows: it is traced, as its first step would trace it, and not executed.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from procsv.training.keras import private, private_epochs


def build_model(model: Any, epochs: Any) -> None:
    """Makes the variables of `model`, whose data come from the EpochIterator `epochs`; the exception says why that cannot be."""
    spec = private_epochs.element_spec(epochs)
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
