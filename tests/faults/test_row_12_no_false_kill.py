"""Row 12: slow work that makes progress is not taken for a hang."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.support.launched import launched, settings_text

pytestmark = pytest.mark.fault

LAUNCHER = [sys.executable, str(Path(__file__).with_name("launch.py"))]
WITHOUT_TENSORFLOW = [sys.executable, str(Path(__file__).parents[1] / "watchdog" / "stand_ins" / "launch.py")]
STEP_S = 3.0

LONG = f"""
import time
import tensorflow as tf
import procsv

tf1 = tf.compat.v1
tf1.disable_eager_execution()


def slow(seconds):
    time.sleep(float(seconds))
    return 0


step = tf1.train.get_or_create_global_step()
seconds = tf1.placeholder(tf.float64, ())
with tf.control_dependencies([tf1.py_func(slow, [seconds], tf.int64)]):
    train = step.assign_add(1)
elsewhere = tf.Graph()
with elsewhere.as_default():
    evaluate = tf1.py_func(slow, [{STEP_S / 2}], tf.int64)
sv = procsv.Supervisor(save_model_secs=0)
with sv.managed_session() as session:
    session.run(train, {{seconds: {STEP_S} + 1}})  # the first one compiles
    for _ in range(100):
        session.run(train, {{seconds: 0.02}})
    with tf1.Session(graph=elsewhere) as other:  # an evaluation in a session of its own
        for _ in range(3):
            other.run(evaluate)
    session.run(train, {{seconds: 0.0}})
    procsv.extend(60)
    time.sleep({STEP_S} + 1)
    session.run(train, {{seconds: 0.0}})
time.sleep({STEP_S} + 1)  # the program's own, after its session
"""


@pytest.mark.long
def test_row_12_a_long_first_step_an_evaluation_an_extension_and_the_time_after_a_session_are_not_hangs(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(LONG)
    settings = settings_text(hang_timeout_s=STEP_S)
    with launched(tmp_path / "logdir", settings, str(tmp_path / "train.py"), launcher=LAUNCHER) as run:
        assert run.wait_end() == 0
    assert run.events("hang_detected") == []
    assert len(run.events("ready")) == 1
    status = json.loads((run.logdir / "procsv" / "run.json").read_text())
    assert status["step_s"] >= 0.02  # learned and kept for the next launch


IMPORT_S = 3.0
IMPORTS = f"""
import first, second, third, fourth, procsv
procsv.extend(60)
fourth.wait({IMPORT_S} + 0.7)
print("imported", flush=True)
"""


@pytest.mark.long
def test_row_12_a_long_import_is_not_a_hang_while_modules_are_loaded_or_after_an_extension(tmp_path: Path) -> None:
    for name in ("first", "second", "third", "fourth"):
        (tmp_path / f"{name}.py").write_text(f"from time import sleep as wait\nwait({IMPORT_S} / 3)\n")
    (tmp_path / "train.py").write_text(IMPORTS)
    settings = settings_text(hang_limits_s={"import": IMPORT_S})
    with launched(tmp_path / "logdir", settings, str(tmp_path / "train.py"), launcher=LAUNCHER) as run:
        assert run.wait_end() == 0
    assert run.events("hang_detected") == []
    assert "imported" in run.said()


# A fit's callbacks: each takes longer than a step may, and one takes forever.
CALLBACKS_S = 6.0
CALLBACKS = f"""
import os, subprocess, sys, threading, time
import keras, numpy as np

IS_FIRST = os.environ["PROCSV_INCARNATION"] == "1"
WORKS = "import time\\nuntil = time.monotonic() + {CALLBACKS_S * 1.5}\\nwhile time.monotonic() < until: time.sleep(0.01)"


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if (self.params["epoch"], batch) == (0, 1):
            subprocess.run(["sleep", "{STEP_S * 1.4}"], check=True)  # an upload

    def on_epoch_begin(self, epoch, logs=None):
        self.params["epoch"] = epoch

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            subprocess.run(["sleep", "{STEP_S * 1.4}"], check=True)  # a score by another program
        if epoch == 1:
            subprocess.run([sys.executable, "-c", WORKS], check=True)
        if epoch == 2 and IS_FIRST:
            threading.Event().wait()


x = np.random.RandomState(0).rand(32, 4).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x.sum(1, keepdims=True), batch_size=16, epochs=4, verbose=0, callbacks=[Slow()])
"""


@pytest.mark.long
def test_row_12_a_callback_is_not_a_step_and_its_childs_work_is_progress(tmp_path: Path) -> None:
    (tmp_path / "fit.py").write_text(CALLBACKS)
    settings = settings_text(
        drop_in=True, hang_timeout_s=STEP_S, hang_limits_s={"program": CALLBACKS_S}, hang_abort_s=0.3
    )
    with launched(tmp_path / "logdir", settings, str(tmp_path / "fit.py"), launcher=LAUNCHER) as run:
        assert run.wait_end() == 0
    (hang,) = run.events("hang_detected")
    assert (hang["phase"], hang["step"]) == ("program", 6), "the third epoch has ended, and its callback waits for ever"
    assert [entry["cause"] for entry in run.events("exited", "trainer")] == ["hang", "completed"]


# -- wrong limits ------------------------------------------------------------------------------------------------
WRONG_S = 10.0
LONGER_S = 1.6 * WRONG_S  # a busy machine is active for seconds after a start, and late by seconds
WRONG = f"""
import os, threading
from procsv.ipc.messaging.watchdog_messages import FirstStepDone
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.runtime.context import current

run = current()
run.heartbeat.enter_phase(Phase.STEP)
run.heartbeat.reach_step(10)
run.heartbeat.extend_limit(0.0)  # the heartbeat says it now
run.report_first_step(FirstStepDone(0, "fresh", "", 10, run.clock.monotonic()))
run.heartbeat.enter_phase(Phase.PROGRAM)
threading.Event().wait(None if os.environ["PROCSV_INCARNATION"] == "1" else {LONGER_S})
for step in (11, 12):
    run.heartbeat.write_step(step)
    threading.Event().wait({LONGER_S})
"""


@pytest.mark.long
def test_row_12_a_wrong_limit_is_doubled_with_one_message(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WRONG)
    settings = settings_text(hang_limits_s={"program": WRONG_S}, hang_abort_s=0.3)
    with launched(tmp_path / "logdir", settings, str(tmp_path / "train.py"), launcher=WITHOUT_TENSORFLOW) as run:
        assert run.wait_end() == 0
    assert len(run.events("hang_detected", "trainer")) == 1
    assert run.said().count("phase program took") == 1


# -- after main returns ------------------------------------------------------------------------------------------
STAYS_S = 3.0
STAYS = f"""
import atexit, concurrent.futures, multiprocessing, os, signal, sys, threading, time
from procsv.ipc.messaging.watchdog_messages import FirstStepDone
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.runtime.context import current

run = current()
if os.environ["PROCSV_INCARNATION"] == "1":  # the next one finds that all was trained
    run.heartbeat.enter_phase(Phase.STEP)
    run.heartbeat.reach_step(10)
    run.heartbeat.extend_limit(0.0)  # the heartbeat says it now
    run.report_first_step(FirstStepDone(0, "fresh", "", 10, run.clock.monotonic()))
    run.heartbeat.enter_phase(Phase.PROGRAM)


def uploads():
    until = time.monotonic() + 2 * {STAYS_S}
    while time.monotonic() < until:
        time.sleep(0.01)
    print("uploaded", flush=True)


def stays(how):
    if how == "pool":
        concurrent.futures.ThreadPoolExecutor(thread_name_prefix="feeders").submit(threading.Event().wait)
    elif how == "child":
        multiprocessing.Process(target=signal.pause, name="feeder").start()
    elif how == "exit-handler":
        atexit.register(threading.Event().wait)
    else:
        threading.Thread(target=uploads if how == "works" else threading.Event().wait, name="feeder").start()


how, code = sys.argv[1:]
if how == "killed" and os.environ["PROCSV_INCARNATION"] == "1":
    threading.Event().wait()
stays(how)
print("main has ended", flush=True)
sys.exit(int(code))
"""


@pytest.fixture
def stays(tmp_path: Path) -> Path:
    program = tmp_path / "stays.py"
    program.write_text(STAYS)
    return program


LIMITS_AGAIN = settings_text(hang_limits_s={"stop": STAYS_S}, grace_s=6.0)
LIMITS = settings_text(hang_limits_s={"stop": STAYS_S}, max_failures=1, grace_s=6.0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("thread", "its thread feeder "),
        ("pool", "its thread feeders_0 "),
        # These keep the main thread in its exit functions, where procsv has already left the run.
        ("child", "SIGKILL hit its process: "),
        ("exit-handler", "SIGKILL hit its process: "),
    ],
)
def test_row_12_a_program_whose_main_has_returned_is_complete_and_what_stays_is_named(
    tmp_path: Path, stays: Path, how: str, named: str
) -> None:
    with launched(tmp_path / "logdir", LIMITS, str(stays), how, "0", launcher=WITHOUT_TENSORFLOW) as run:
        assert run.wait_end() == 0
    assert [entry["incarnation"] for entry in run.events("spawned", "trainer")] == [1]
    assert [(e["code"], e["cause"]) for e in run.events("exited", "trainer")] == [(0, "completed")]
    assert run.events("hang_detected", "trainer") == []
    said = run.said()
    assert named in said
    assert run.events("run_completed")[0]["step"] == 10


@pytest.mark.long
def test_row_12_a_thread_that_still_uploads_after_main_may_finish(tmp_path: Path, stays: Path) -> None:
    with launched(tmp_path / "logdir", LIMITS, str(stays), "works", "0", launcher=WITHOUT_TENSORFLOW) as run:
        assert run.wait_end() == 0
    assert "uploaded" in run.said()
    assert "ending it" not in run.said()


def test_row_12_a_signal_after_main_has_returned_does_not_change_how_the_program_ended(
    tmp_path: Path, stays: Path
) -> None:
    settings = settings_text(hang_limits_s={"stop": 600.0})
    with launched(tmp_path / "logdir", settings, str(stays), "waits", "0", launcher=WITHOUT_TENSORFLOW) as run:
        run.wait_for("the end of main", lambda: "main has ended" in run.said())
        run.wait_for("the heartbeat", lambda: "stop" in [one["phase"] for one in run.status()["processes"]])
        run.kill("trainer")
        assert run.wait_end() == 0
    assert [(e["code"], e["cause"]) for e in run.events("exited", "trainer")] == [(0, "completed")]
    assert "SIGKILL hit its process: " in run.said()


@pytest.mark.long
def test_row_12_a_failed_main_ends_with_its_own_code_whatever_its_threads_do(tmp_path: Path, stays: Path) -> None:
    with launched(tmp_path / "logdir", LIMITS, str(stays), "waits", "3", launcher=WITHOUT_TENSORFLOW) as run:
        assert run.wait_end() != 0
    assert [(e["code"], e["cause"]) for e in run.events("exited", "trainer")] == [(3, "exit-code")]


def test_row_12_a_program_that_has_ended_is_complete_even_if_it_is_asked_to_stop(tmp_path: Path, stays: Path) -> None:
    settings = settings_text(hang_limits_s={"stop": 600.0})
    with launched(tmp_path / "logdir", settings, str(stays), "thread", "0", launcher=WITHOUT_TENSORFLOW) as run:
        run.wait_for("the heartbeat", lambda: "stop" in [one["phase"] for one in run.status()["processes"]])
        run.kill("watchdog", signal.SIGTERM)
        assert run.wait_end() == 0
    assert run.events("run_completed")[0]["step"] == 10


@pytest.mark.long
def test_row_12_a_start_with_nothing_left_to_train_is_complete_when_its_main_returns(
    tmp_path: Path, stays: Path
) -> None:
    with launched(tmp_path / "logdir", LIMITS_AGAIN, str(stays), "killed", "0", launcher=WITHOUT_TENSORFLOW) as run:
        run.wait_event("recovered")
        run.kill("trainer")
        assert run.wait_end() == 0
    assert [entry["cause"] for entry in run.events("exited", "trainer")] == ["killed", "completed"]
    assert "its thread feeder " in run.said()
