"""State of callbacks: what was read of one is what another one of its kind has when it is written."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from procsv.base.plain_values import decode, encode
from procsv.training.keras.callbacks import read_callbacks, write_callbacks


def decide(callback: keras.callbacks.EarlyStopping, losses: list[float]) -> list[int]:
    """How long it has waited after each."""
    waits = []
    for epoch, loss in enumerate(losses):
        callback.on_epoch_end(epoch, {"loss": np.float32(loss)})
        waits.append(callback.wait)
    return waits


@pytest.mark.parametrize("mode", ["min", "max", "auto"])
def test_early_stopping_decides_after_a_restore_as_it_would_have_without(mode: str) -> None:
    def made() -> keras.callbacks.EarlyStopping:
        callback = keras.callbacks.EarlyStopping("loss", mode=mode, min_delta=0.5, patience=9)
        callback.on_train_begin()
        return callback

    losses = [3.0, 2.9, 2.8, 1.0, 0.9, 1.2]
    wanted = decide(made(), losses)
    first, second = made(), made()
    assert decide(first, losses[:2]) == wanted[:2]
    write_callbacks([second], decode(encode({"callbacks": read_callbacks([first])}))["callbacks"])
    assert decide(second, losses[2:]) == wanted[2:]
