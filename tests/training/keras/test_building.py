"""A fit's variables are created before its first step."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from procsv.training.keras.epochs import Epochs
from procsv.training.keras.fit_start import build_model
from procsv.training.keras.private import EpochIterator
from tests.support.keras_kinds import OwnStep


@pytest.mark.parametrize("is_eager", [False, True], ids=["traced", "run eagerly"])
def test_a_custom_step_that_alone_can_build_the_model_creates_its_variables_without_training(
    is_eager: bool,
) -> None:
    model = OwnStep()
    model.compile(keras.optimizers.Adam(), run_eagerly=is_eager)
    model.make_train_function()
    seeds = model.seeds.state.numpy()
    data = tf.data.Dataset.from_tensor_slices((np.zeros((8, 16), np.float32), np.zeros(8, np.int32))).batch(4)
    build_model(model, Epochs(EpochIterator(x=data, distribute_strategy=model.distribute_strategy)))
    assert [variable.shape for variable in model.trainable_variables] == [(16, 32), (32,), (32, 3), (3,)]
    for optimizer, layer in ((model.optimizer, model.first), (model.second, model.last)):
        assert len(optimizer.variables) == 2 + 2 * len(layer.trainable_variables), "of Adam"
        assert int(optimizer.iterations.numpy()) == 0
    assert np.array_equal(model.seeds.state.numpy(), seeds)
