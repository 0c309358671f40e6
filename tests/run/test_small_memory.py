"""With a container's default of 64 MB shared memory, training and checkpoints go on after one message."""

import os
import subprocess
from pathlib import Path

import pytest
import tensorflow as tf

from procsv.training.graph.state import GraphState
from procsv.training.snapshots.backends import StagingBackend
from tests.support.journal import read_journal
from tests.support.launched import procsv
from tests.support.small_places import small_filesystem

tf1 = tf.compat.v1


def _launch_with_64_mb(*args: str) -> subprocess.CompletedProcess[str]:
    """Run a whole `procsv launch` with a /dev/shm of 64 MB, as in a container."""
    return procsv("launch", "--standby", "off", *args, within=small_filesystem("/dev/shm", 2**26))


# Too large for any slot. Its last snapshots are of the last saved step.
LARGE = """
import numpy as np
from tests.support.numpy_training import STEP, training

arrays = {STEP: np.array(0, np.int64), "weights": np.zeros(25_000_000, np.float32)}


def count():
    arrays[STEP] += 1


with training(save_s=3600, arrays=arrays) as model:
    while model.step < 30:
        model.pass_step(count)
"""


@pytest.mark.fault
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small /dev/shm of its own")
@pytest.mark.long
def test_a_run_whose_slots_do_not_fit_into_shared_memory_saves_by_staging_and_says_so_once(tmp_path: Path) -> None:
    logdir, program = tmp_path / "logdir", tmp_path / "large.py"
    program.write_text(LARGE)
    done = _launch_with_64_mb("--logdir", str(logdir), str(program))

    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("no snapshots in ") == 1
    assert "--shm-size" in done.stdout + done.stderr
    durable = [
        e["step"] for e in read_journal(logdir / "procsv" / "journal.jsonl") if e["event"] == "checkpoint_durable"
    ]
    assert sorted(set(durable)) == [0, 30]  # a last periodic snapshot of step 30 may be saved as well
    assert not list((logdir / "procsv").glob("staged.*"))
    assert tf.train.load_checkpoint(str(logdir)).get_tensor("global_step") == 30


def test_a_staging_directory_that_has_no_room_is_given_up_for_the_next(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        saver = tf1.train.Saver()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            way = StagingBackend(GraphState(session, saver, step), [Path("/proc"), tmp_path], "r", 2)
            finish = way.capture(3, "")
    assert finish is not None
    assert finish().prefix == str(tmp_path / "staged.3.2.r" / "model.ckpt-0")  # type: ignore[attr-defined]  # a Staged
    assert way.directories == [tmp_path]


GROWING = """
import sys, threading
import tensorflow as tf
import procsv
tf1 = tf.compat.v1
tf1.disable_eager_execution()
step = tf1.train.get_or_create_global_step()
table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.string, b"", name="table")
grow = table.insert(step, tf.strings.join([tf.strings.as_string(step), "x" * 1_500_000]))
with tf.control_dependencies([grow]):
    train = tf1.assign_add(step, 1)
saver = tf1.train.Saver([*tf1.global_variables(), table])
with procsv.Supervisor(saver=saver, summary_op=None).managed_session() as session:
    while session.run(train) < 40:
        threading.Event().wait(0.05)
"""


@pytest.mark.fault
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small /dev/shm of its own")
@pytest.mark.long
def test_a_state_that_outgrows_shared_memory_is_saved_by_staging_from_then_on(tmp_path: Path) -> None:
    logdir, program = tmp_path / "logdir", tmp_path / "growing.py"
    program.write_text(GROWING)
    done = _launch_with_64_mb("--snapshot-secs", "0.2", "--logdir", str(logdir), str(program))

    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert said.count("no snapshots in ") == 1, said
    reader = tf.train.load_checkpoint(str(logdir))
    assert reader.get_tensor("global_step") == 40
    (keys,) = (reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if name.endswith("-keys"))
    assert sorted(keys) == list(range(40))


LARGE_FIT = """
import keras
import numpy as np
import procsv
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(100_000), keras.layers.Dense(1)])
model.compile("adam", "mse", jit_compile=False)
x = np.random.default_rng(0).normal(size=(24, 64)).astype("float32")
model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[procsv.keras.BackupAndRestore()])
"""


@pytest.mark.fault
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small /dev/shm of its own")
@pytest.mark.long
def test_a_fit_that_does_not_fit_into_shared_memory_saves_by_staging_and_says_so_once(tmp_path: Path) -> None:
    program, logdir = tmp_path / "program.py", tmp_path / "logdir"
    program.write_text(LARGE_FIT)
    done = _launch_with_64_mb("--logdir", str(logdir), str(program))

    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("no snapshots in ") == 1
    assert "--shm-size" in done.stdout + done.stderr
    durable = [e for e in read_journal(logdir / "procsv" / "journal.jsonl") if e["event"] == "checkpoint_durable"]
    assert [(e["step"], e["reason"]) for e in durable] == [(12, "final")]
    assert not list((logdir / "procsv").glob("staged.*"))
