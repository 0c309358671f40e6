"""A run survives the kill of any of its processes, and its result does not change.

The programs train on digits where TensorFlow matters, and NumPy arrays elsewhere.
"""

import itertools
import random
import re
import shutil
import signal
import statistics
import threading
from pathlib import Path

import psutil
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from procsv.base.run.paths import find_paths
from tests.support import standing
from tests.support.launched import NEWS_S_MAX, Launched, launched, procsv, python
from tests.support.numpy_training import digest_after
from tests.support.sudden_end import find_living

pytestmark = pytest.mark.fault
tf1 = tf.compat.v1

DIGITS = "procsv.examples.digits"
STEPS = 1000
ARRAYS = ("tests.support.numpy_training", str(STEPS), "0.01")
STANDS_AT = "900"  # a launch that is not to come to its end
TRAINER_KILLS, SERVICE_KILLS = 3, 10
SEED = 20


def _result(run: Launched) -> tuple[str, str]:
    """Return accuracy and digest of the final variables as last printed."""
    return _find_result(run.said())


def _find_result(said: str) -> tuple[str, str]:
    found = re.findall(r"test accuracy ([0-9.]+).*variables ([0-9a-f]{16})", said.replace("\n", " "))
    assert found, said[-3000:]
    accuracy, digest = found[-1]
    return accuracy, digest


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return the result of the same training without faults and without procsv launch."""
    logdir = tmp_path_factory.mktemp("undisturbed") / "digits"
    done = python(DIGITS, "--logdir", str(logdir), "--steps", "3000")
    assert done.returncode == 0, done.stderr
    result = _find_result(done.stdout)
    assert float(result[0]) > 0.95
    return result


# The digits example, which waits at step HELD_STEP for a file `may end` beside it, so that it
# trains while the test works.
HELD_STEP = 2900
HELD = f"""
import os, sys, threading
from procsv.examples import digits

may_end = os.path.join(os.path.dirname(os.path.abspath(__file__)), "may end")


class Held(digits.Progress):
    def show(self, step, text):
        super().show(step, text)
        while step >= {HELD_STEP} and not os.path.exists(may_end):
            threading.Event().wait(0.01)


digits.Progress = Held
"""
# It also writes a line for each finished step and each whole snapshot, before anything else
# happens.
RECORDED = """
import time
import procsv.training.snapshots.backends as ways

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "record." + os.environ["PROCSV_INCARNATION"])
record = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
publish = ways.fill_and_publish


def write(what, step):
    os.write(record, f"{what} {step} {time.monotonic()}\\n".encode())


class Progress(Held):
    def show(self, step, text):
        write("step", step)
        super().show(step, text)


def publish_and_record(*args, **kwargs):
    info = publish(*args, **kwargs)
    write("snapshot", info.step)
    return info


digits.Progress, ways.fill_and_publish = Progress, publish_and_record
"""
RUNS = "sys.exit(digits.main())\n"
SNAPSHOT_S = 0.3


def test_row_01_killing_the_trainer_costs_only_the_steps_since_the_last_snapshot_and_changes_no_bit(
    tmp_path: Path, undisturbed: tuple[str, str]
) -> None:
    rng, pause = random.Random(SEED), threading.Event()
    program = tmp_path / "recorded.py"
    program.write_text(HELD + RECORDED + RUNS)
    args = (
        "--snapshot-secs",
        str(SNAPSHOT_S),
        "--backoff",
        "0.1s..1s",
        str(program),
        "--steps",
        "3000",
        "--step-ms",
        "4",
    )
    with launched(tmp_path / "digits", *args, standby="warm") as run:
        for kill in range(1, TRAINER_KILLS + 1):
            run.wait_event("recovered", kill)
            run.wait_event("standby_ready")
            assert len(list(find_paths(run.logdir).run_dir.glob("stacks.*"))) <= 1  # dead trainers leave none behind
            pause.wait(rng.uniform(0.0, 1.0))  # at a random moment of the training
            run.kill("trainer", signal.SIGKILL if kill < TRAINER_KILLS else signal.SIGSEGV)
            run.wait_event("exited", kill, "trainer")
        (tmp_path / "may end").touch()
        assert run.wait_end() == 0
    assert _result(run) == undisturbed
    assert len(run.events("run_completed")) == 1
    assert not [e for e in run.events("checkpoint_durable") if e["reason"] == "manual"], (
        "one of ours was taken for another's"
    )
    exits = [e for e in run.events("exited") if e["role"] == "trainer" and e["signal"]]
    recoveries = run.events("recovered")[1:]
    assert len(exits) == len(recoveries) == TRAINER_KILLS
    assert [e["signal"] for e in exits] == ["SIGKILL"] * (TRAINER_KILLS - 1) + ["SIGSEGV"]
    assert "procsv/examples/digits.py" in (run.logdir / "procsv" / "crashes" / f"{TRAINER_KILLS}.txt").read_text()
    assert {e["incarnation"] for e in run.events("promoted")} >= {2, 3, 4}, "each is a fork of the standby"
    gaps_s, before = list[float](), 0
    for ended, recovered in zip(exits, recoveries, strict=True):
        steps, snapshots = _read_record(tmp_path / f"record.{ended['incarnation']}")
        newest = max(snapshots, default=before)
        # No whole snapshot is lost. One more snapshot or step may have ended just before its line
        # was written.
        made = max(steps, default=max(newest, recovered["step"], ended["step"])) + 1
        assert newest <= recovered["step"] <= made, (newest, recovered["step"], made)
        assert ended["step"] <= made
        gaps_s += [after - earlier for earlier, after in itertools.pairwise(snapshots.values())]
        before = recovered["step"]
    assert statistics.median(gaps_s) < 2 * SNAPSHOT_S  # a kill costs that much


def _read_record(path: Path) -> tuple[dict[int, float], dict[int, float]]:
    """Return finished steps and whole snapshots with their times. A truncated line does not count."""
    found: dict[str, dict[int, float]] = {"step": {}, "snapshot": {}}
    for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
        if line.endswith("\n"):
            what, step, when_s = line.split()
            found[what][int(step)] = float(when_s)
    return found["step"], found["snapshot"]


def test_a_kill_before_the_first_step_costs_only_the_start(tmp_path: Path) -> None:
    comes_to_no_step = "trainer.compile@1=hang"
    with launched(tmp_path / "logdir", ARRAYS[0], "50", "0.01", PROCSV_FAILPOINTS=comes_to_no_step) as run:
        run.wait_spawned("trainer")
        run.kill("trainer")
        assert run.wait_end() == 0
    assert len(run.events("restarting")) == 1


@pytest.mark.long
def test_ten_kills_of_each_service_leave_the_trainer_alone_and_lose_nothing(
    tmp_path: Path, undisturbed: tuple[str, str]
) -> None:
    """TensorFlow and TensorBoard read the files to their ends."""
    rng, pause = random.Random(SEED), threading.Event()
    program = tmp_path / "held.py"
    program.write_text(HELD + RUNS)
    args = ("--steps", "3000", "--step-ms", "4", "--save-model-secs", "1")
    with launched(tmp_path / "digits", "--snapshot-secs", "0.5", str(program), *args) as run:
        run.wait_event("recovered")
        trainer = run.pid("trainer")
        acknowledged: set[int] = set()
        for kill in range(1, SERVICE_KILLS + 1):
            for role in ("checkpoint", "summary"):
                run.wait_spawned(role, kill)
                pause.wait(rng.uniform(0.0, 1.0))
                run.kill(role)
                acknowledged |= {e["step"] for e in run.events("checkpoint_durable")}
                run.wait_event("service_restarted", kill, role)
            assert psutil.Process(trainer).is_running()
        (tmp_path / "may end").touch()
        assert run.wait_end() == 0
    assert {e["pid"] for e in run.events("spawned") if e["role"] == "trainer"} == {trainer}
    assert _result(run) == undisturbed
    assert acknowledged <= {e["step"] for e in run.events("checkpoint_durable")}
    _check_checkpoints(run.logdir, 3000)
    _check_events(run.logdir, 3000)
    assert (run.logdir / "graph.pbtxt").read_text().startswith("node {")


def _arrays_end_undisturbed(run: Launched) -> None:
    assert f"ended with {digest_after(STEPS)}" in run.said()


@pytest.mark.long
def test_a_killed_watchdog_costs_no_step_and_the_same_command_resumes(tmp_path: Path) -> None:
    with launched(tmp_path / "logdir", *ARRAYS, STANDS_AT=STANDS_AT) as run:
        run.wait_event("recovered")
        pids = [e["pid"] for e in run.events("spawned")]
        run.kill("watchdog")
        run.process.wait()
        psutil.wait_procs(find_living(pids), timeout=NEWS_S_MAX)
        assert not [pid for pid in pids if psutil.pid_exists(pid)]
    saved = int(tf1.train.latest_checkpoint(str(tmp_path / "logdir")).rpartition("-")[2])
    with launched(tmp_path / "logdir", *ARRAYS) as run:
        assert run.wait_end() == 0
    assert run.events("recovered")[-1]["step"] == saved > 0
    _arrays_end_undisturbed(run)


@pytest.mark.long
def test_row_53_a_frozen_trainer_that_wakes_beside_the_next_launch_changes_no_bit(tmp_path: Path) -> None:
    with launched(tmp_path / "logdir", *ARRAYS, STANDS_AT=STANDS_AT) as run:
        run.wait_event("checkpoint_durable")
        trainer = psutil.Process(run.kill("trainer", signal.SIGSTOP))
        roles = ("watchdog", "checkpoint", "summary")
        killed = [psutil.Process(run.pid(role)) for role in roles]  # the services may go with the watchdog
        for role in roles:
            run.kill(role)
        run.process.wait()
        psutil.wait_procs(killed, timeout=NEWS_S_MAX)
    durable = [entry["step"] for entry in run.events("checkpoint_durable")][-1]
    paths = find_paths(tmp_path / "logdir")
    shutil.rmtree(paths.run_dir)
    paths.run_json.unlink()
    with launched(tmp_path / "logdir", *ARRAYS) as run:
        run.wait_for("the old trainer's pid", lambda: f"process {trainer.pid} (" in run.said())
        trainer.send_signal(signal.SIGCONT)
        assert run.wait_end() == 0
    assert not trainer.is_running()
    assert run.events("recovered")[-1]["step"] >= durable
    _arrays_end_undisturbed(run)


@pytest.mark.long
def test_a_stopped_run_exits_75_and_the_same_command_resumes_without_losing_a_step(
    tmp_path: Path, undisturbed: tuple[str, str]
) -> None:
    command = (standing.PROGRAM, "digits", "--steps", "3000", "--step-ms", "4")
    with launched(tmp_path / "digits", *command, STANDS_AT=STANDS_AT) as run:
        run.wait_event("recovered")
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.wait_end() == 75
    stopped_at = [e for e in run.events("exited") if e["role"] == "trainer"][-1]["step"]
    with launched(tmp_path / "digits", *command) as run:
        assert run.wait_end() == 0
    assert run.events("recovered")[-1]["step"] == stopped_at
    assert _result(run) == undisturbed


def _check_checkpoints(logdir: Path, last_step: int) -> None:
    """Read the newest checkpoint with TensorFlow's own reader and a plain Saver."""
    newest = tf1.train.latest_checkpoint(str(logdir))
    reader = tf.train.load_checkpoint(str(logdir))
    assert reader.get_tensor("global_step") == last_step
    with tf.Graph().as_default():
        variables = {
            name: tf1.get_variable(name, shape, tf.as_dtype(reader.get_variable_to_dtype_map()[name]))
            for name, shape in reader.get_variable_to_shape_map().items()
        }
        saver = tf1.train.Saver(variables)
        with tf1.Session() as session:
            saver.restore(session, newest)
            for name, variable in variables.items():
                assert session.run(variable).tobytes() == reader.get_tensor(name).tobytes()


def _check_events(logdir: Path, last_step: int) -> None:
    """Read every file to its end with TensorBoard's loader. No summary is doubled or missing in between."""
    seen: list[tuple[str, int]] = []
    for path in sorted(logdir.glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            seen.extend((value.tag, event.step) for value in event.summary.value)
    assert len(seen) == len(set(seen))
    losses = sorted(step for tag, step in seen if tag == "loss")
    assert losses[-1] > last_step - 100
    gaps = {after - before for before, after in itertools.pairwise(losses)}
    assert len(gaps) == 1, gaps
