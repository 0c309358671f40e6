"""What a run of digits must survive: its processes are killed, and nobody can tell from the result."""

import itertools
import random
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from tests.support.launched import Launched, environment, launched, procsv

pytestmark = pytest.mark.fault
tf1 = tf.compat.v1

DIGITS = "procsv.examples.digits"
KILLS = 10
SEED = 20


def _result(run: Launched) -> tuple[str, str]:
    """Accuracy and digest of the final variables, as the program printed them last."""
    return _find_result(run.said())


def _find_result(said: str) -> tuple[str, str]:
    found = re.findall(r"test accuracy ([0-9.]+).*variables ([0-9a-f]{16})", said.replace("\n", " "))
    assert found, said[-3000:]
    accuracy, digest = found[-1]
    return accuracy, digest


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The result of the same training without any fault, without procsv launch."""
    logdir = tmp_path_factory.mktemp("undisturbed") / "digits"
    done = subprocess.run(
        [sys.executable, "-m", DIGITS, "--logdir", str(logdir), "--steps", "3000"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = _find_result(done.stdout)
    assert float(result[0]) > 0.95
    return result


def test_ten_kills_of_the_trainer_cost_a_snapshot_interval_each_and_change_no_bit(
    tmp_path: Path, undisturbed: tuple[str, str]
) -> None:
    rng, pause = random.Random(SEED), threading.Event()
    with launched(tmp_path / "digits", "--snapshot-secs", "0.3", DIGITS, "--steps", "3000", "--step-ms", "4") as run:
        for kill in range(1, KILLS + 1):
            run.wait_event("ready", kill)
            pause.wait(rng.uniform(0.0, 1.0))  # at a random moment of the training
            run.kill("trainer")
            run.wait_event("exited", kill)
        assert run.wait_end() == 0
    assert _result(run) == undisturbed
    assert len(run.events("run_completed")) == 1
    exits = [e for e in run.events("exited") if e["role"] == "trainer" and e["signal"]]
    recoveries = run.events("recovered")[1:]
    assert len(exits) == len(recoveries) == KILLS
    assert {e["signal"] for e in exits} == {"SIGKILL"}
    longest_interval_steps = (0.3 + 1.2) / 0.004  # a snapshot interval, and what a busy machine adds to it
    for ended, recovered in zip(exits, recoveries, strict=True):
        assert ended["step"] - recovered["step"] <= longest_interval_steps


def test_a_kill_before_the_first_step_ever_costs_nothing_but_the_start(tmp_path: Path) -> None:
    with launched(tmp_path / "digits", DIGITS, "--steps", "200") as run:
        run.wait_spawned("trainer")
        run.kill("trainer")
        assert run.wait_end() == 0
    assert len(run.events("restarting")) == 1


@pytest.mark.parametrize("role", ["checkpoint", "summary"])
def test_ten_kills_of_a_service_leave_the_trainer_alone_and_lose_nothing(
    tmp_path: Path, undisturbed: tuple[str, str], role: str
) -> None:
    rng, pause = random.Random(SEED), threading.Event()
    args = ("--steps", "3000", "--step-ms", "4", "--save-model-secs", "1")
    with launched(tmp_path / "digits", "--snapshot-secs", "0.5", DIGITS, *args) as run:
        run.wait_event("ready")
        trainer = run.pid("trainer")
        acknowledged: set[int] = set()
        for kill in range(1, KILLS + 1):
            run.wait_spawned(role, kill)
            pause.wait(rng.uniform(0.0, 1.2))
            run.kill(role)
            acknowledged |= {e["step"] for e in run.events("checkpoint_durable")}
            run.wait_event("service_restarted", kill)
            assert psutil.Process(trainer).is_running()
        assert run.wait_end() == 0
    assert {e["pid"] for e in run.events("spawned") if e["role"] == "trainer"} == {trainer}
    assert _result(run) == undisturbed
    assert acknowledged <= {e["step"] for e in run.events("checkpoint_durable")}
    _check_checkpoints(run.logdir, 3000)
    _check_events(run.logdir, 3000)


def test_a_killed_watchdog_costs_no_step_and_the_same_command_resumes(
    tmp_path: Path, undisturbed: tuple[str, str]
) -> None:
    command = (DIGITS, "--steps", "3000", "--step-ms", "4")
    with launched(tmp_path / "digits", *command) as run:
        run.wait_event("ready")
        pids = [e["pid"] for e in run.events("spawned")]
        run.kill("watchdog")
        run.process.wait()
        psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=25)
        assert not [pid for pid in pids if psutil.pid_exists(pid)]
    saved = int(tf1.train.latest_checkpoint(str(tmp_path / "digits")).rpartition("-")[2])
    with launched(tmp_path / "digits", *command) as run:
        assert run.wait_end() == 0
    assert run.events("recovered")[-1]["step"] == saved > 0
    assert _result(run) == undisturbed


def test_a_run_that_is_stopped_exits_75_and_the_same_command_goes_on_without_losing_a_step(
    tmp_path: Path, undisturbed: tuple[str, str]
) -> None:
    command = (DIGITS, "--steps", "3000", "--step-ms", "4")
    with launched(tmp_path / "digits", *command) as run:
        run.wait_event("ready")
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.wait_end() == 75
    stopped_at = [e for e in run.events("exited") if e["role"] == "trainer"][-1]["step"]
    with launched(tmp_path / "digits", *command) as run:
        assert run.wait_end() == 0
    assert run.events("recovered")[-1]["step"] == stopped_at
    assert _result(run) == undisturbed


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_a_crash_is_told_by_its_signal(tmp_path: Path, number: signal.Signals) -> None:
    with launched(tmp_path / "digits", DIGITS, "--steps", "600", "--step-ms", "4") as run:
        run.wait_event("ready")
        run.kill("trainer", number)
        assert run.wait_end() == 0
    ended = next(e for e in run.events("exited") if e["role"] == "trainer")
    assert ended["signal"] == number.name
    assert len(run.events("recovered")) == 2


def _check_checkpoints(logdir: Path, last_step: int) -> None:
    """The newest checkpoint is read by TensorFlow's own means, by a plain Saver too."""
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
    """TensorBoard's loader reads every file to its end; no summary is there twice, none is missing in between."""
    seen: list[tuple[str, int]] = []
    for path in sorted(logdir.glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            seen.extend((value.tag, event.step) for value in event.summary.value)
    assert len(seen) == len(set(seen))
    losses = sorted(step for tag, step in seen if tag == "loss")
    assert losses[-1] > last_step - 100
    gaps = {after - before for before, after in itertools.pairwise(losses)}
    assert len(gaps) == 1, gaps


def test_files_of_a_plain_run_are_read_by_tensorflow_and_tensorboard(tmp_path: Path) -> None:
    with launched(tmp_path / "digits", DIGITS, "--steps", "400") as run:
        assert run.wait_end() == 0
    _check_checkpoints(run.logdir, 400)
    _check_events(run.logdir, 400)
    assert (run.logdir / "graph.pbtxt").read_text().startswith("node {")
