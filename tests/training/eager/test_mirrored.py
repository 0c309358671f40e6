"""A CheckpointManager works in a loop under MirroredStrategy, with counters in its scope and values per replica."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import contextlib, sys
import tensorflow as tf
import procsv
devices = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
strategy = tf.distribute.MirroredStrategy(tf.config.list_logical_devices("CPU"))
directory, what = sys.argv[1:]
with strategy.scope():
    v = tf.Variable([1.0, 2.0])
    step = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    reads, adds = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.SUM
    seen = tf.Variable(0.0, synchronization=reads, aggregation=adds, trainable=False)
objects = {"v": v, "step": step} | ({"seen": seen} if what == "unequal" else {})
with strategy.scope() if what == "in scope" else contextlib.nullcontext():
    manager = procsv.CheckpointManager(tf.train.Checkpoint(**objects), directory, step_counter=step)
with manager:
    manager.restore_or_initialize()
    for _ in range(5):
        strategy.run(lambda: v.assign_add([1.0, 1.0]))
        step.assign_add(1)
        manager.step()
    print("saved", manager.save(wait=True))
    print("step", step.values[0].numpy(), "latest", manager.latest_checkpoint)
"""


OWN_VALUES = """
import pathlib, sys
import numpy as np
import tensorflow as tf
import procsv
from procsv.training.eager.state import EagerState
from tests.support.numpy_state import numpy_plan

devices = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
ours, theirs, staged = (pathlib.Path(sys.argv[1]) / name for name in ("ours", "theirs", "staged"))
staged.mkdir()


class Net(tf.Module):
    def __init__(self, names=("CPU:0", "CPU:1")):
        super().__init__()
        self.strategy = tf.distribute.MirroredStrategy(names)
        self.run = tf.function(lambda call: self.strategy.run(call))
        with self.strategy.scope():
            self.local = tf.Variable([1.0, 2.0])
            self.flags = tf.Variable([True, False], trainable=False)
            self.small = tf.Variable(tf.zeros([3], tf.bfloat16), trainable=False)
            self.names = tf.Variable("", trainable=False)
            self.alike = tf.Variable(3.0)
            reads, adds = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.SUM
            self.seen = tf.Variable(0.0, synchronization=reads, aggregation=adds, trainable=False)

    def train(self):
        def replica():
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            self.local.assign_add([0.5, 0.1 + 0.3 * tf.cast(number, tf.float32)])
            self.flags.assign([number == 1, number == 0])
            self.small.assign_add(tf.cast(tf.fill([3], number), tf.bfloat16))
            self.names.assign(tf.strings.as_string(number))
            self.seen.assign_add(0.1 + tf.cast(number, tf.float32))

        self.run(replica)
        self.alike.assign_add(1.0)

    def values(self):
        variables = (self.local, self.flags, self.small, self.names, self.alike, self.seen)
        return [[np.asarray(one.numpy()).tolist() for one in variable.values] for variable in variables]


def say(text):
    sys.stderr.write("# " + text + "\\n")
    sys.stderr.flush()


net = Net()
with procsv.CheckpointManager(tf.train.Checkpoint(net=net), ours) as manager:
    manager.restore_or_initialize()
    for _ in range(3):
        net.train()
        manager.step()
    path = manager.save(wait=True)
wanted = net.values()
assert all(one != other for one, other in [*wanted[:4], wanted[5]]), wanted
keys = [name for name, _ in tf.train.list_variables(path) if name.startswith("procsv/")]
assert sorted({key.split("/")[4] for key in keys}) == ["flags", "local", "names", "seen", "small"], keys

say("TensorFlow reads past what it does not know")
other = Net()
status = tf.train.Checkpoint(net=other).restore(path)
status.assert_existing_objects_matched()
status.assert_consumed()
total = float(np.sum(np.asarray(wanted[-1], np.float32)))
assert other.values() == [[one[0]] * 2 for one in wanted[:-1]] + [[total / 2] * 2]

say("a manager of ours puts back what each replica had")
other = Net()
with procsv.CheckpointManager(tf.train.Checkpoint(net=other), ours) as manager:
    assert manager.restore_or_initialize() == path
    assert other.values() == wanted

say("so does a restore of the program's own")
other = Net()
checkpoint = tf.train.Checkpoint(net=other)
with procsv.CheckpointManager(checkpoint, ours) as manager:
    checkpoint.restore(manager.latest_checkpoint).assert_consumed()
    assert other.values() == wanted
    manager.step()

say("restored before")
other = Net()
checkpoint = tf.train.Checkpoint(net=other)
checkpoint.restore(tf.train.latest_checkpoint(str(ours)))
with procsv.CheckpointManager(checkpoint, ours) as manager:
    manager.step()

say("one replica")
other = Net(["CPU:0"])
with procsv.CheckpointManager(tf.train.Checkpoint(net=other), ours) as manager:
    manager.restore_or_initialize()
    assert other.values() == [[one[0]] for one in wanted[:-1]] + [[total]]

say("a checkpoint of TensorFlow's own")
tf.train.CheckpointManager(tf.train.Checkpoint(net=net), str(theirs), max_to_keep=1).save()
other = Net()
with procsv.CheckpointManager(tf.train.Checkpoint(net=other), theirs) as manager:
    manager.restore_or_initialize()
    assert other.values() == [[one[0]] * 2 for one in wanted[:-1]] + [[total / 2] * 2]

say("written without a slot")
source = EagerState(tf.train.Checkpoint(net=net), numpy_plan(staged), lambda: 4)
whole = source.save_to(staged, 4)
assert not (staged / "parts").exists()
other = Net()
tf.train.Checkpoint(net=other).read(whole).assert_consumed()
EagerState(tf.train.Checkpoint(net=other), numpy_plan(staged), lambda: 4).restore(whole)
assert other.values() == wanted
say("the end")
"""
TOLD = """# TensorFlow reads past what it does not know
# a manager of ours puts back what each replica had
# so does a restore of the program's own
# restored before
procsv: 5 variables (net/flags and others)
# one replica
procsv: 1 variable (net/seen)
# a checkpoint of TensorFlow's own
procsv: 1 variable (net/seen)
# written without a slot
# the end
"""


def run(program: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *args],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.long
@pytest.mark.parametrize("what", ["in scope", "beside it", "unequal"])
def test_a_counter_and_a_manager_may_be_created_in_the_scope(tmp_path: Path, what: str) -> None:
    for number, step in ((1, 5), (2, 10)):
        done = run(PROGRAM, str(tmp_path / "run"), what)
        assert done.returncode == 0, done.stderr
        path = f"{tmp_path}/run/ckpt-{number}"
        assert done.stdout == f"saved {path}\nstep {step} latest {path}\n"
        assert not re.search(r"procsv: .* \d+ variables? \(", done.stderr), "no replica has lost its value"


@pytest.mark.long
def test_each_replica_gets_its_own_value_back_and_tensorflow_reads_the_same_file(tmp_path: Path) -> None:
    done = run(OWN_VALUES, str(tmp_path))
    assert done.returncode == 0, done.stderr
    lines = (
        re.sub(r"^procsv: .* (\d+ variables? \([^)]*\)) .*", r"procsv: \1", line) for line in done.stderr.splitlines()
    )
    assert [line for line in lines if re.match(r"#|procsv: \d+ variable", line)] == TOLD.splitlines()


DROP_IN = """
import sys
import procsv
procsv.install()
import tensorflow as tf
devices = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
strategy = tf.distribute.MirroredStrategy(tf.config.list_logical_devices("CPU"))
with strategy.scope():
    v = tf.Variable([1.0, 2.0])
checkpoint = tf.train.Checkpoint(v=v)
manager = tf.train.CheckpointManager(checkpoint, sys.argv[1], 3)
if manager.latest_checkpoint:
    checkpoint.restore(manager.latest_checkpoint).assert_consumed()
print("began", [one.numpy().tolist() for one in v.values])


@tf.function
def train():
    strategy.run(lambda: v.assign_add([1.0, tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)]))


for _ in range(3):
    train()
manager.save()
print("ended", [one.numpy().tolist() for one in v.values])
"""


@pytest.mark.long
def test_a_program_that_does_not_know_procsv_gets_each_replicas_values_back(tmp_path: Path) -> None:
    first, second = (run(DROP_IN, str(tmp_path / "run")) for _ in range(2))
    assert first.stdout == "began [[1.0, 2.0], [1.0, 2.0]]\nended [[4.0, 2.0], [4.0, 5.0]]\n", first.stderr
    assert second.stdout == "began [[4.0, 2.0], [4.0, 5.0]]\nended [[7.0, 2.0], [7.0, 8.0]]\n", second.stderr
    assert "the single replicas" not in first.stderr + second.stderr
