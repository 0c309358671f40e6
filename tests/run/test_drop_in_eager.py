"""`procsv launch --drop-in` supervises Keras and TensorFlow 2 programs that do not know procsv."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from procsv.base import exit_codes
from tests.support.launched import Launched, launched, procsv, python

pytestmark = pytest.mark.fault

QUICK = ("--drop-in", "--backoff", "0.1s..1s", "--snapshot-secs", "0.1")

PROGRAM = """
import hashlib, json, os, pathlib, sys, time
import keras
import numpy as np
import tensorflow as tf
from tests.support.standing import stand

WAY, DIRECTORY, WAIT_S = sys.argv[1], sys.argv[2], float(sys.argv[3])
keras.utils.set_random_seed(7)
x = np.random.default_rng(0).normal(size=(320, 8)).astype("float32")
y = x.sum(1, keepdims=True)
layers = [keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
model = keras.Sequential(layers)
model.compile("adam", "mse", jit_compile=False)


def show(**more):
    found = hashlib.sha256(json.dumps(more, sort_keys=True).encode())
    for variable in (*model.variables, *model.optimizer.variables):
        found.update(np.asarray(variable).tobytes())
    print("ends with", found.hexdigest()[:16], flush=True)


class Another(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 2:
            other = keras.Sequential([keras.layers.Dense(1)])
            other.compile("sgd", "mse", run_eagerly=True)
            other.fit(x[:32], y[:32], verbose=0)


def wait(step):
    time.sleep(WAIT_S)
    if WAIT_S and step >= 120:  # not over before the test has killed or stopped it
        stand(lambda: os.path.exists(os.environ["OPEN"]))


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        wait(int(self.model.optimizer.iterations))


def fit():
    callbacks = [Slow()] if WAIT_S else []
    chosen = {"bare": [*callbacks, Another()], "backup": [*callbacks, keras.callbacks.BackupAndRestore(DIRECTORY)]}[WAY]
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(320, seed=3).batch(16)
    history = model.fit(data, epochs=8, verbose=0, callbacks=chosen, validation_data=(x[:32], y[:32]))
    show(history=history.history)


def loop():
    step = tf.Variable(0, dtype=tf.int64)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(320, seed=3).repeat().batch(16)
    batches = iter(data)
    model.optimizer.build(model.trainable_variables)
    seeds = [v for v in model.variables if "seed" in v.path]
    checkpoint = tf.train.Checkpoint(step=step, model=model, optimizer=model.optimizer, batches=batches, seeds=seeds)
    manager = tf.train.CheckpointManager(checkpoint, DIRECTORY, max_to_keep=3)
    best = tf.train.CheckpointManager(checkpoint, DIRECTORY + "-best", max_to_keep=1)
    checkpoint.restore(manager.latest_checkpoint)
    print("begins at", int(step), flush=True)

    @tf.function
    def train(inputs, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs, training=True) - labels) ** 2)
        variables = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, variables), variables)

    while int(step) < 160:
        train(*next(batches))
        step.assign_add(1)
        wait(int(step))
        if int(step) % 10 == 0:
            print("saved", path := manager.save(), flush=True)
        if int(step) == 20:  # counted as a save of the same checkpoint: from here on the numbers are one ahead
            best.save()
        if int(step) == 140:
            print("exists", tf.compat.v1.train.checkpoint_exists(path), flush=True)
    again = tf.train.CheckpointManager(checkpoint, DIRECTORY, max_to_keep=3)
    print("newest", tf.train.latest_checkpoint(DIRECTORY), again.latest_checkpoint, flush=True)
    show()


loop() if WAY == "loop" else fit()
"""


def ending(text: str) -> str:
    found = re.findall(r"ends with ([0-9a-f]{16})", text)
    assert found, text
    return str(found[-1])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "train.py"
    path.write_text(PROGRAM)
    return path


def ends_alone(program: Path, way: str, directory: Path) -> str:
    done = python(program, way, str(directory), "0")
    assert done.returncode == 0, done.stderr
    return ending(done.stdout)


def wait_said(run: Launched, pattern: str) -> None:
    run.wait_for(pattern, lambda: re.search(pattern, run.said()))


def kill_at(run: Launched, *steps: int) -> None:
    for count, step in enumerate(steps, start=2):
        run.wait_step(step)
        run.kill("trainer")
        assert run.wait_event("recovered", count)[count - 1]["source"] != "fresh"


@pytest.mark.long
def test_a_killed_fit_of_a_program_that_does_not_know_procsv_ends_with_the_bits_of_an_undisturbed_one(
    program: Path, tmp_path: Path
) -> None:
    wanted = {way: ends_alone(program, way, tmp_path / "none") for way in ("bare", "backup")}
    gate = tmp_path / "open"
    bare = (str(program), "bare", "-", "0.02")
    with launched(tmp_path / "bare", *QUICK, *bare, standby=None, OPEN=str(gate)) as run:  # as installed
        kill_at(run, 15, 75)
        gate.touch()
        run.assert_completed()
        assert ending(run.said()) == wanted["bare"]
        assert " protect a model.fit: " in run.said()
        assert run.said().count(" procsv protects model.fit") == 3  # once a start
    gate.unlink()
    backup = (str(program), "backup", str(tmp_path / "elsewhere"), "0.02")
    with launched(tmp_path / "backup", *QUICK, *backup, OPEN=str(gate)) as run:
        kill_at(run, 30)
        gate.touch()
        run.assert_completed()
        assert ending(run.said()) == wanted["backup"]
    assert not (tmp_path / "elsewhere").exists()  # the run's logdir has it


@pytest.mark.long
def test_a_loop_with_a_checkpoint_manager_resumes_from_its_newest_save_and_ends_with_the_same_bits(
    program: Path, tmp_path: Path
) -> None:
    wanted = ends_alone(program, "loop", tmp_path / "alone")
    logdir, gate = tmp_path / "loop", tmp_path / "open"
    with launched(logdir, *QUICK, str(program), "loop", str(logdir), "0.02", standby=None, OPEN=str(gate)) as run:
        wait_said(run, r"saved .*ckpt-4")
        run.kill("trainer")
        wait_said(run, r"begins at [^0]")
        wait_said(run, r"saved .*ckpt-8")
        run.kill("watchdog", signal.SIGTERM)  # a preemption: it ends with its next save
        assert run.wait_end() == exit_codes.RESUMABLE
        stopped = run.events("checkpoint_durable")[-1]
        assert stopped["reason"] in ("preempt", "manual")
        assert re.search(r"CheckpointManager of \S*-best: ", run.said())
    with launched(logdir, *QUICK, str(program), "loop", str(logdir), "0") as run:
        run.assert_completed()
        assert f"begins at {10 * (int(stopped['path'].rpartition('-')[2]) - 1)}\n" in run.said()
        assert ending(run.said()) == wanted
        assert f"newest {logdir}/ckpt-17 {logdir}/ckpt-17\n" in run.said()  # the program finds its save at once
        assert "exists True\n" in run.said()
    names = sorted(path.stem for path in logdir.glob("ckpt-*.index"))
    assert names == ["ckpt-15", "ckpt-16", "ckpt-17"]


LEGACY = """
import shutil
import tensorflow as tf

def fit(directory):  # as its BackupAndRestore does
    step = tf.Variable(0)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(step=step), directory, max_to_keep=1)
    for _ in range(5):
        step.assign_add(1)
        manager.save()
    shutil.rmtree(directory)
    return type(manager)
"""
LEGACY_PROGRAM = """
import sys
import tensorflow as tf
import tf_keras

print("saved by", tf_keras.fit(sys.argv[1]).__module__, flush=True)
"""


@pytest.mark.long
def test_tf_keras_and_its_own_managers_are_left_alone_with_one_message(tmp_path: Path) -> None:
    (tmp_path / "tf_keras.py").write_text(LEGACY)
    (tmp_path / "train.py").write_text(LEGACY_PROGRAM)
    backup = tmp_path / "run" / "backup"
    with launched(tmp_path / "run", *QUICK, str(tmp_path / "train.py"), str(backup), standby=None) as run:
        assert run.wait_end() == 0
        said = run.said()
    assert "saved by tensorflow.python.checkpoint.checkpoint_management" in said
    assert said.count("tf_keras (TF_USE_LEGACY_KERAS) is imported: ") == 1
    assert said.count("it belongs to tf_keras") == 1


LOOP = """
import os, sys, time
import tensorflow as tf
from tests.support.standing import stand

WAY, DIRECTORY = sys.argv[1], sys.argv[2]
step = tf.Variable(0, dtype=tf.int64)
state = tf.train.Checkpoint(step=step)
best = tf.train.CheckpointManager(state, DIRECTORY + "/best", max_to_keep=1)
latest = tf.train.CheckpointManager(state, DIRECTORY + "/latest", max_to_keep=3)
if WAY == "restores":
    state.restore(latest.latest_checkpoint)
print("begins at", int(step), flush=True)
while int(step) < 60:
    step.assign_add(1)
    time.sleep(0.02)
    if WAY == "restores" and int(step) in (5, 55):
        best.save()
    if int(step) % 5 == 0:
        latest.save(checkpoint_number=int(step))
        print("saved", int(step), flush=True)
    if int(step) == 40 and int(os.environ["PROCSV_INCARNATION"]) <= int(os.environ["KILLS"]):
        stand()
"""


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loop") / "loop.py"
    path.write_text(LOOP)
    return path


@pytest.mark.long
def test_the_manager_that_the_program_resumes_from_is_supervised_and_its_saves_are_counted(
    loop: Path, tmp_path: Path
) -> None:
    logdir = tmp_path / "run"
    with launched(logdir, *QUICK, str(loop), "restores", str(logdir / "models"), KILLS="1") as run:
        wait_said(run, "saved 20")
        run.kill("trainer")
        run.assert_completed()
        said, status = run.said(), run.status()
    first, again = (int(step) for step in re.findall(r"begins at (\d+)", said))
    assert (first, again % 5) == (0, 0)
    assert again >= 20
    assert re.search(rf" from save {again // 5}\b", said), said
    assert f" again at save {again // 5 + 1} " in said
    assert re.search(r"CheckpointManager of \S*best: ", said)
    assert run.events("restarting")[0]["lost_seconds"] >= 0
    assert status["habit"] == {"unit": "save", "restores": True}


@pytest.mark.long
def test_a_program_that_saves_but_never_restores_is_warned_that_it_starts_over(loop: Path, tmp_path: Path) -> None:
    logdir = tmp_path / "run"
    with launched(logdir, *QUICK, str(loop), "forgets", str(logdir / "models"), KILLS="2") as run:
        wait_said(run, "saved 20")
        run.kill("trainer")
        wait_said(run, r"(?s)begins at 0.*begins at 0.*saved 20")
        run.kill("trainer")
        run.assert_completed()
        said, status = run.said(), run.status()
    assert re.search(r"at once; save \d+ is ", said)
    assert len(re.findall(r"not restore save \d+", said)) == 1
    assert len(re.findall("at once, .* beginning", said)) == 1
    assert re.search(r"again at save 1 after .*, \d+ saves and .* redone", said)
    assert "no step redone" not in said
    assert (status["protected"], status["habit"]) == (False, {"unit": "save", "restores": False})
    assert len(run.events("not_restored")) == 1


# An iterator over a Python generator is part of the Checkpoint: TensorFlow cannot save it.
GENERATOR = """
import sys, time
import tensorflow as tf


def numbers():
    yield from range(1000)


step = tf.Variable(0)
batches = iter(tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec((), tf.int32)))
state = tf.train.Checkpoint(step=step, batches=batches)
if sys.argv[1] == "unchanged":
    manager = tf.train.CheckpointManager(state, sys.argv[2], max_to_keep=2)
else:
    import procsv
    manager = procsv.CheckpointManager(state, sys.argv[2], max_to_keep=2)
manager.restore_or_initialize()
print("begins at", int(step), flush=True)
while step < 20:
    step.assign_add(1)
    next(batches)
    if int(step) == 10:
        try:
            manager.save()
        except tf.errors.FailedPreconditionError as error:
            print("as TensorFlow's:", isinstance(error, tf.errors.OpError), flush=True)
            raise
"""


@pytest.mark.parametrize("way", ["unchanged", "ours"])
@pytest.mark.long
def test_a_program_whose_iterator_tensorflow_cannot_save_is_warned_early_and_not_started_twice(
    way: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(GENERATOR)
    logdir = tmp_path / "run"
    with launched(logdir, *QUICK, str(tmp_path / "train.py"), way, str(logdir)) as run:
        assert run.wait_end() == exit_codes.GAVE_UP
        said = run.said()
    told = said.index("TensorFlow cannot save 'batches' of the tf.train.Checkpoint: PyFunc is stateful. ")
    assert "tf.py_function" in said, "what to do about it"
    assert len(run.events("exited", "trainer")) == 1
    assert ("begins at" in said) == (way == "unchanged")
    if way == "unchanged":
        assert told < said.index("begins at"), "before it trains"
        assert "as TensorFlow's: True" in said


CELLS = """
import sys
import tensorflow as tf


def cell(last):
    step = tf.Variable(0, dtype=tf.int64)
    state = tf.train.Checkpoint(step=step)
    manager = tf.train.CheckpointManager(state, sys.argv[1], max_to_keep=3)
    state.restore(manager.latest_checkpoint)
    print("begins at", int(step), flush=True)
    while int(step) < 8:
        step.assign_add(1)
        path = manager.save()
        if int(step) == last:
            raise KeyboardInterrupt
    return manager, path


try:
    cell(5)
except KeyboardInterrupt:
    pass
manager, path = cell(None)
print("supervised", manager._is_supervised, "newest", path, flush=True)
"""


@pytest.mark.long
def test_a_cell_that_is_interrupted_and_run_again_resumes_from_its_last_save(tmp_path: Path) -> None:
    (tmp_path / "cells.py").write_text(CELLS)
    logdir = tmp_path / "run"
    with launched(logdir, *QUICK, str(tmp_path / "cells.py"), str(logdir)) as run:
        run.assert_completed()
        said = run.said()
    assert re.findall(r"begins at (\d)", said) == ["0", "5"]
    assert f"supervised True newest {logdir}/ckpt-8" in said
    assert "does not protect" not in said
    assert run.events("checkpoint_durable")[-1]["path"].endswith("ckpt-8")
    assert [entry["code"] for entry in run.events("exited", "trainer")] == [0]


ELSEWHERE = """
import os, sys
import tensorflow as tf

step, part = tf.Variable(0), tf.Variable(1.0)
before = tf.train.Checkpoint(part=part)
before.restore(before.write(sys.argv[1] + "/before/ckpt"))
state = tf.train.Checkpoint(step=step, part=part)
manager = tf.train.CheckpointManager(state, sys.argv[1], max_to_keep=2)
for number in range(3):
    manager.save()
manager.sync()
if not os.path.exists(sys.argv[1] + "/again"):
    open(sys.argv[1] + "/again", "w").close()
    os.kill(os.getpid(), 9)
"""


@pytest.mark.long
def test_a_program_that_restores_from_elsewhere_is_not_warned_that_it_restored_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ELSEWHERE)
    logdir = tmp_path / "run"
    with launched(logdir, *QUICK, str(tmp_path / "train.py"), str(logdir)) as run:
        run.assert_completed()
        said = run.said()
    assert len(run.events("recovered")) == 2
    assert "program to restore" in said
    assert "not restore" not in said
    assert run.status()["habit"]["restores"] is None
    assert "has not seen" in " ".join(procsv("status", str(logdir)).stdout.split())
