"""A tf_keras fit in two tasks, with its own BackupAndRestore, resumes at its epoch after a kill."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.launched import launched

pytestmark = pytest.mark.long

PROGRAM = """
import hashlib, os, sys, time
import numpy as np
import tensorflow as tf
import tf_keras

task, attempt, is_killed = os.environ["PROCSV_TASK"], os.environ["PROCSV_INCARNATION"], "killed" in sys.argv[1]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
tf_keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")
y = (x.sum(1) > 0).astype("float32")
with strategy.scope():
    layers = [tf_keras.layers.Dense(16, "relu"), tf_keras.layers.Dense(1, "sigmoid")]
    model = tf_keras.Sequential([tf_keras.layers.Input((8,)), *layers])
    model.compile("adam", "binary_crossentropy")
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32).with_options(options)


class Say(tf_keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        print("epoch", epoch, "after", int(self.model.optimizer.iterations.numpy()), flush=True)

    def on_train_batch_end(self, batch, logs=None):
        while self.epoch == 3 and task == "worker.1" and attempt == "1" and is_killed:
            time.sleep(0.05)
        time.sleep(0.05)


model.fit(data, epochs=8, verbose=0, callbacks=[tf_keras.callbacks.BackupAndRestore(sys.argv[1]), Say()])
print("digest", hashlib.sha256(b"".join(v.numpy().tobytes() for v in model.variables)).hexdigest()[:16], flush=True)
"""
OPTIONS = ("--workers", "2", "--no-chief", "--restart", "gang", "train.py")


def test_a_gang_of_fits_resumes_at_its_epoch_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    digests = []
    for name in ("alone", "killed"):
        with launched(tmp_path / name, *OPTIONS, str(tmp_path / f"{name}.backup"), cwd=tmp_path) as run:
            if name == "killed":
                run.wait_for("the fourth epoch", lambda: "epoch 3 after" in run.said())
                run.kill("worker.1")
            run.assert_completed()
            said = run.said()
        digests.append(re.findall(r"digest (\w+)", said))
        begun = re.findall(r"epoch (\d+) after (\d+)", said)
        assert all(int(batches) == 8 * int(epoch) for epoch, batches in begun)
        assert len(begun) == (9 if name == "killed" else 8), begun
    assert digests[0] == digests[1]
    assert len(digests[0]) == 1
