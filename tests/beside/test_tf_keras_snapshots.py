"""A tf_keras fit with the callback of docs/keras.md, killed three times, ends with the bits of an
undisturbed one.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.launched import launched
from tests.support.programs import ROOT

pytestmark = pytest.mark.long

BEFORE = """
import hashlib, time
import numpy as np
import tensorflow as tf
import tf_keras
import procsv

tf_keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")
y = (x.sum(1) > 0).astype("float32")
layers = [tf_keras.layers.Dense(16, "relu"), tf_keras.layers.BatchNormalization(), tf_keras.layers.Dense(1, "sigmoid")]
model = tf_keras.Sequential([tf_keras.layers.Input((8,)), *layers])
model.compile("adam", "binary_crossentropy")
"""
FIT = """
class Pause(tf_keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)

options = {"shuffle": False, "verbose": 0}
model.fit(x, y, epochs=30, initial_epoch=int(snapshots.epochs), callbacks=[snapshots, Pause()], **options)
"""
AFTER = """
values = [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
print("digest", hashlib.sha256(b"".join(v.tobytes() for v in values)).hexdigest()[:16], flush=True)
"""


def program() -> str:
    """Write the documentation's example with a fit that takes a while."""
    (example,) = re.findall(
        r"```python\n(class Snapshots\(.*?)```", (ROOT / "docs" / "keras.md").read_text(), re.DOTALL
    )
    head, _, tail = example.partition("model.fit(")
    return "".join((BEFORE, head, FIT, tail.partition("\n")[2], AFTER))


def test_the_callback_of_the_documentation_keeps_model_and_optimizer(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program())
    with launched(tmp_path / "alone", "train.py", cwd=tmp_path) as run:
        run.assert_completed()
        wanted = run.digest()
    options = ("--backoff", "0.1s..1s", "--snapshot-secs", "0.05")
    faults = [word for epoch in (4, 11, 20) for word in ("--fault", f"kill trainer at step {epoch}")]
    with launched(tmp_path / "run", *options, *faults, "train.py", cwd=tmp_path) as run:
        run.assert_completed()
        recovered = run.events("recovered")
        assert [entry["source"] for entry in recovered] == ["fresh", "memory", "memory", "memory"]
        assert run.digest() == wanted
