"""`procsv drill` passes a program that survives its faults and fails one that only seems to."""

import json
from pathlib import Path

import pytest

from tests.support.journal import read_journal
from tests.support.launched import procsv

pytestmark = pytest.mark.fault

MIXED = """
seed = 5
[[fault]]
do = "kill trainer at step 150"
[[fault]]
do = "kill checkpoint every 400 steps, 3 times"
[[fault]]
do = "kill summary every 300 steps, 3 times"
[[fault]]
do = "raise trainer at step 450"
[[fault]]
do = "stop checkpoint for 1s at step 500"
[[fault]]
do = "stop summary for 1s at step 550"
[[fault]]
do = "segfault trainer at step 700"
[[fault]]
do = "fill disk for 1s at step 750"
[[fault]]
do = "drop messages of checkpoint for 1s at step 800"
[[fault]]
do = "drop messages of summary for 1s at step 850"
[[fault]]
do = "preempt trainer with grace 30s at step 950"
[[fault]]
do = "stop trainer for 1s at step 1050"
[[fault]]
do = "corrupt logdir by flip at step 1100"
[[fault]]
do = "exit trainer with 3 at step 1200"
[[fault]]
do = "drop messages of trainer for 1s at step 1250"
[[fault]]
do = "kill watchdog at step 1300"
"""
HAPPENED = 20
ARRAYS = ("tests.support.numpy_training", "1500", "0.005")
QUICK = 'backoff = "0.1s..1s"\nstandby = "off"\n'  # of launch: pauses and standbys have tests of their own


@pytest.mark.long
def test_a_training_ends_bit_identical_after_twenty_mixed_faults(tmp_path: Path) -> None:
    plan, config = tmp_path / "plan.toml", tmp_path / "quick.toml"
    plan.write_text(MIXED)
    config.write_text(QUICK)
    files = ("--plan", str(plan), "--config", str(config), "--logdir", str(tmp_path / "drill"))
    options = (*files, "--snapshot-secs", "0.5", "--json")
    done = procsv("drill", *options, *ARRAYS, timeout_s=500, STANDS_AT="1350", STANDS_FOR_FAULTS=str(HAPPENED))
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["held"]
    assert said["variables"] == "identical"
    assert said["not_happened"] == []
    assert len(said["faults"]) == HAPPENED
    assert [fault["lost_steps"] for fault in said["faults"] if "preempt" in fault["fault"]] == [0]
    assert said["drilled"]["exit_codes"][0] == -9, "the watchdog was killed, and the same command went on"
    for name in ("baseline", "drilled"):
        seconds = said[name]["seconds"]
        assert sum(seconds.values()) == pytest.approx(said[name]["wall_seconds"], rel=0.01)
    faults = [e for e in read_journal(tmp_path / "drill/drilled/procsv/journal.jsonl") if e["event"] == "fault"]
    assert [e["step"] for e in faults if e["fault"] == "kill trainer at step 150"] == [150]


@pytest.mark.long
def test_row_55_a_drills_closely_spaced_faults_end_no_training(tmp_path: Path) -> None:
    config = tmp_path / "quick.toml"
    config.write_text(f'{QUICK}snapshot-secs = "0.2"\n')
    options = ("--config", str(config), "--logdir", str(tmp_path / "drill"), "--json")
    faults = ("--fault", "raise trainer every 150 steps, 6 times")
    done = procsv("drill", *options, *faults, *ARRAYS, timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(json.loads(done.stdout)["faults"]) == 6


def failed_drill(tmp_path: Path, source: str, *options: str, args: tuple[str, ...] = ()) -> str:
    """Return the output, on one line, of a drill that the program fails."""
    program, config = tmp_path / "program.py", tmp_path / "quick.toml"
    program.write_text(source)
    config.write_text(QUICK)
    given = ("--config", str(config), "--logdir", str(tmp_path / "drill"), *options)
    done = procsv("drill", *given, str(program), *args, timeout_s=300)
    said = " ".join(done.stdout.split())
    assert done.returncode == 1, said + done.stderr
    return said


# The fault comes once there is a snapshot to resume from; otherwise the run would start over
# unchanged.
FORGETFUL = """
import time
import numpy as np
from tests.support.numpy_training import STEP, training

arrays = {STEP: np.array(0, np.int64), "total": np.array(0.0)}
seen = 0  # which is in no array: a restart begins it anew

def add():
    arrays["total"] += seen
    arrays[STEP] += 1

with training(arrays=arrays) as model:
    while not model.should_stop() and model.step < 60:
        seen += 1
        model.pass_step(add)
        time.sleep(0.02)
        if seen == 30:
            model.wait_in_memory()
"""


@pytest.mark.long
def test_a_program_that_keeps_state_elsewhere_fails(tmp_path: Path) -> None:
    said = failed_drill(tmp_path, FORGETFUL, "--fault", "kill trainer at step 40")
    assert "did not hold" in said
    assert "total (by " in said
    assert "outside the graph" in said


DELETES = """
import os, sys
import tensorflow as tf
from tests.support.standing import stand
tf1 = tf.compat.v1
tf1.disable_eager_execution()
if tf.io.gfile.exists(sys.argv[1]):
    tf.io.gfile.rmtree(sys.argv[1])
tf.io.gfile.makedirs(sys.argv[1])
step = tf1.train.get_or_create_global_step()
train = tf1.assign_add(step, 1)
sv = tf1.train.Supervisor(logdir=sys.argv[1], summary_op=None)
with sv.managed_session() as sess:
    while not sv.should_stop() and sess.run(step) < 150:
        sess.run(train)
        sv.coord.wait_for_stop(0.02)
        if sess.run(step) == 100 and "drilled" in sys.argv[1] and os.environ["PROCSV_INCARNATION"] == "1":
            stand()
"""


@pytest.mark.long
def test_a_program_that_deletes_its_directory_fails_though_it_ends_the_same(tmp_path: Path) -> None:
    fault = "preempt watchdog with grace 20s at step 30"  # no state stays in memory
    said = failed_drill(tmp_path, DELETES, "--drop-in", "--fault", fault, args=("{logdir}",))
    assert "bit-identical" in said
    assert ": attempt 2 after step" in said
    assert "deletes its checkpoints" in said


COUNTS = """
import time
import numpy as np
from tests.support.numpy_training import STEP, training

arrays = {STEP: np.array(0, np.int64), "noise": np.random.default_rng().normal(size=4)}

def count():
    arrays[STEP] += 1

with training(arrays=arrays) as model:
    for number in range(60):
        model.pass_step(count)
        time.sleep(0.02)
        if number == 30:
            model.wait_in_memory()
"""


@pytest.mark.long
def test_a_program_that_restarts_its_step_count_is_reported_as_ending_later(tmp_path: Path) -> None:
    said = failed_drill(tmp_path, COUNTS, "--fault", "kill trainer at step 40")
    assert "did not hold" in said
    assert "at step 60 without" in said
    assert "not deterministic" in said


def test_a_drill_leaves_an_earlier_one_alone(tmp_path: Path) -> None:
    (tmp_path / "drilled").mkdir()
    done = procsv("drill", "--logdir", str(tmp_path), "procsv.examples.digits")
    assert done.returncode == 2
    assert str(tmp_path / "drilled") in done.stderr


def test_a_program_that_cannot_start_is_reported_with_launchs_own_message(tmp_path: Path) -> None:
    procsv("drill", "--logdir", str(tmp_path), "the_first")
    done = procsv("drill", "--logdir", str(tmp_path), "the_second")
    assert done.returncode == 2
    assert "\nprocsv: the_second: " in done.stderr
    assert "the_first" not in done.stderr


NAMES_ITS_OWN = """
import time
import tensorflow as tf
tf1 = tf.compat.v1
tf1.disable_eager_execution()
step = tf1.train.get_or_create_global_step()
tf1.summary.scalar("steps", step)
train = tf1.assign_add(step, 1)
hooks = [
    tf1.train.StopAtStepHook(60),
    tf1.train.SummarySaverHook(save_steps=10, output_dir="MINE/events", summary_op=tf1.summary.scalar("mine", step)),
]
place = f"MINE/{time.time_ns()}"
with tf1.train.MonitoredTrainingSession(checkpoint_dir=place, summary_dir=f"{place}/train", hooks=hooks) as session:
    while not session.should_stop():
        session.run(train)
        time.sleep(0.02)
"""


@pytest.mark.long
def test_a_program_with_a_hard_coded_directory_is_drilled_without_touching_it(tmp_path: Path) -> None:
    program, config, mine = tmp_path / "train.py", tmp_path / "quick.toml", tmp_path / "mine"
    program.write_text(NAMES_ITS_OWN.replace("MINE", str(mine)))
    config.write_text(QUICK)
    mine.mkdir()
    (mine / "checkpoint").write_text("an earlier one")
    options = ("--drop-in", "--config", str(config), "--snapshot-secs", "0.2", "--fault", "kill trainer at step 30")
    done = procsv("drill", *options, "--logdir", str(tmp_path / "drill"), "--json", str(program))
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["variables"] == "identical"
    assert [path.name for path in mine.iterdir()] == ["checkpoint"]
    for arm in ("baseline", "drilled"):
        said = (tmp_path / "drill" / f"{arm}.out").read_text()
        assert f"{tmp_path}/drill/{arm} " in said
        assert f" {mine}/" in said
        for events in (".", "train", "events"):
            assert list((tmp_path / "drill" / arm / events).glob("events.out.tfevents.*"))


def test_an_unknown_fault_is_reported_before_anything_is_trained(tmp_path: Path) -> None:
    done = procsv(
        "drill", "--fault", "klil trainer at step 3", "--logdir", str(tmp_path / "drill"), "procsv.examples.digits"
    )
    assert done.returncode == 2
    assert "did you mean 'kill'?" in done.stderr
    assert not (tmp_path / "drill").exists()


RESTLESS = """
import os
import tensorflow as tf
import keras
import numpy as np
import procsv

class Restless(keras.callbacks.Callback):  # what it draws is kept nowhere
    def on_epoch_end(self, epoch, logs=None):
        bias = self.model.get_layer("last").bias
        bias.assign_add([int.from_bytes(os.urandom(2), "little") * 1e-6])

keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(160, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, name="first"), keras.layers.Dense(1, name="last")])
model.compile("sgd", "mse", jit_compile=False)
callbacks = [Restless(), procsv.keras.BackupAndRestore()]
model.fit(x, x.sum(1, keepdims=True), epochs=3, batch_size=8, verbose=0, callbacks=callbacks)
"""


@pytest.mark.long
def test_the_first_variable_of_a_fit_that_differs_is_named_with_its_owner(tmp_path: Path) -> None:
    said = failed_drill(tmp_path, RESTLESS, "--snapshot-secs", "0.05", "--fault", "kill trainer at step 30")
    assert "final variables differ: sequential/first/kernel (model, by " in said
    assert "not deterministic" in said


@pytest.mark.long
def test_several_tasks_are_drilled_and_each_fault_is_reported_with_its_cost(tmp_path: Path) -> None:
    faults = ("--fault", "kill worker.0 at step 150", "--fault", "kill ps.0 at step 1500")
    tasks = ("--workers", "1", "--ps", "1", "--rtol", "1e9")  # no two trainings are alike
    options = (*tasks, "--snapshot-secs", "0.2", "--logdir", str(tmp_path / "drill"), "--json")
    program = ("procsv.examples.replicas", "--steps", "1800", "--step-ms", "15")  # 20 s between the two
    done = procsv("drill", *options, *faults, *program, timeout_s=500)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    worker, server = said["faults"]
    assert (worker["task"], worker["ended_task"], worker["lost_steps"], worker["source"]) == (
        "worker.0",
        True,
        0,
        "chief",
    )
    assert (server["task"], server["ended_task"], server["source"]) == ("ps.0", True, "memory")
    assert server["down_s"] > 0
    assert (said["held"], said["not_happened"], said["variables"]) == (True, [], "close")
