"""`--drop-in` leaves fits of Keras 2, or of Keras on another backend, alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.launched import Launched, launched

pytestmark = pytest.mark.long

PROGRAM = """
import os, sys, threading
import numpy as np
import tensorflow as tf
if "jax" in sys.argv:
    import keras
else:
    keras = tf.keras
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")
y = (x.sum(1) > 0).astype("float32")
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1, "sigmoid")])
model.compile("adam", "binary_crossentropy")
pause = threading.Event()

class Say(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        print("epoch", epoch, "after", int(self.model.optimizer.iterations), flush=True)

    def on_train_batch_end(self, batch, logs=None):
        pause.wait(None if self.epoch == 3 and os.environ["PROCSV_INCARNATION"] == "1" else 0.02)  # it is killed there

callbacks = [Say()]
if "backup" in sys.argv:
    callbacks.append(keras.callbacks.BackupAndRestore(sys.argv[1]))
if "checkpoint" in sys.argv:
    callbacks.append(keras.callbacks.ModelCheckpoint(sys.argv[1] + ".keras"))
model.fit(x, y, batch_size=32, epochs=6, verbose=0, callbacks=callbacks)
print("ended", type(callbacks[-1]).__module__, flush=True)
"""
KERAS_2 = "tf_keras (TF_USE_LEGACY_KERAS) is imported: "
ON_JAX = "Keras runs on jax: "
KINDS = [
    ("keras 2", ""),
    ("keras 2", "backup"),
    ("keras 2", "checkpoint"),
    ("keras 2", "backup checkpoint"),
    ("jax", ""),
    ("jax", "backup"),
]


def epochs(run: Launched) -> list[tuple[int, int]]:
    """Return each started epoch with the batches before it, as counted by the optimizer."""
    said = re.findall(r"^epoch (\d+) after (\d+)$", run.said(), re.MULTILINE)
    return [(int(epoch), int(batches)) for epoch, batches in said]


@pytest.mark.parametrize(("kind", "callbacks"), KINDS)
def test_a_fit_is_left_alone_with_one_message_a_start_and_continues_by_its_own_callbacks(
    tmp_path: Path, kind: str, callbacks: str
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    variables = {"TF_USE_LEGACY_KERAS": "1"} if kind == "keras 2" else {"KERAS_BACKEND": "jax"}
    args = ["--drop-in", str(tmp_path / "train.py"), str(tmp_path / "backup"), kind, *callbacks.split()]
    with launched(tmp_path / "run", *args, cwd=tmp_path, standby=None, **variables) as run:
        run.wait_for("the fourth epoch", lambda: any(epoch == 3 for epoch, _ in epochs(run)))
        before = len(epochs(run))
        run.kill("trainer")
        assert run.wait_end() == 0
        said = run.said()
        begun, batches = epochs(run)[before]
    assert (begun, batches) == (epochs_kept(callbacks), 8 * epochs_kept(callbacks))
    assert said.count(KERAS_2 if kind == "keras 2" else ON_JAX) == 2
    assert re.search(r"^ended (\w+)", said, re.MULTILINE)
    assert "ended procsv" not in said


def epochs_kept(callbacks: str) -> int:
    """Return the epochs that the callbacks have saved by the start of the fourth."""
    return 3 if "backup" in callbacks else 0
