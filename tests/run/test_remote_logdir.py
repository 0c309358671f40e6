"""With a URL as logdir, checkpoints and events go through TensorFlow's filesystem and the run's own
files stay local.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from procsv.base.run.paths import find_paths
from procsv.services.checkpoint.remote.fence import WRITER
from tests.support import keras_two_fits
from tests.support.launched import launched, procsv, python

pytestmark = pytest.mark.fault

DIGITS = "procsv.examples.digits"


def event_steps(directory: Path) -> list[int]:
    steps: list[int] = []
    for path in sorted(directory.glob("events.out.tfevents.*")):
        steps += [event.step for event in EventFileLoader(str(path)).Load() if event.HasField("summary")]
    return steps


@pytest.mark.long
def test_a_logdir_that_is_a_url_keeps_a_killed_run_under_launch_and_the_next_of_a_supervisor_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, far = tmp_path / "state", tmp_path / "far" / "digits"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    url = f"file://{far}"
    done = procsv(
        *("launch", "--standby", "off", "--logdir", url, "--backoff", "0s..0s", "--fault", "kill trainer at step 300"),
        *(DIGITS, "--steps", "600"),
    )
    assert done.returncode == 0, done.stderr

    here = find_paths(url)
    assert here.logdir.parent == state / "procsv"
    assert f"go to {url}" in done.stderr
    latest = tf.train.latest_checkpoint(url)
    assert latest is not None
    assert tf.train.load_checkpoint(latest).get_tensor("global_step") == 600
    names = {path.name for path in far.iterdir()}
    assert {"checkpoint", "model.ckpt-600.manifest.json", "graph.pbtxt"} <= names
    assert max(event_steps(far)) <= 600
    assert [name for name in names if name.startswith(("procsv", "."))] == [WRITER]
    assert not list((here.home / "staging").iterdir())
    status = json.loads(procsv("status", url, "--json").stdout)
    assert (status["logdir"], status["durable_step"], status["restarts"]) == (url, 600, 1)
    shown = json.loads(procsv("checkpoints", url, "--verify", "--json").stdout)
    assert [item["path"] for item in shown["checkpoints"] if item["latest"] and item["verified"]] == [latest]
    recovered = [json.loads(line) for line in here.journal.read_text().splitlines() if '"recovered"' in line]
    assert [event["source"] for event in recovered] == ["fresh", "memory"]

    alone = python(DIGITS, "--logdir", url, "--steps", "700")

    assert alone.returncode == 0, alone.stderr
    last = [json.loads(line) for line in here.journal.read_text().splitlines() if '"recovered"' in line][-1]
    assert (last["source"], last["from"], last["step"]) == ("checkpoint", f"{url}/model.ckpt-600", 600)
    assert tf.train.latest_checkpoint(url) == f"{url}/model.ckpt-700"
    assert max(event_steps(far)) > 600


@pytest.mark.long
def test_an_unknown_scheme_is_one_clear_error(tmp_path: Path) -> None:
    done = procsv(
        *("launch", "--standby", "off", "--logdir", "nowhere://bucket/x", DIGITS, "--steps", "10"),
        XDG_STATE_HOME=str(tmp_path),
    )
    assert done.returncode == 70
    assert (done.stdout + done.stderr).count("no filesystem for nowhere://") == 1
    assert "Traceback" not in done.stdout + done.stderr


LOOP = """
import os, signal
import tensorflow as tf
import procsv

step = tf.Variable(0, dtype=tf.int64)
manager = procsv.CheckpointManager(tf.train.Checkpoint(step=step), max_to_keep=2, step_counter=step)
print("finds", manager.latest_checkpoint, flush=True)
manager.restore_or_initialize()
while int(step) < 30:
    step.assign_add(1)
    manager.step()
    if int(step) % 10 == 0:
        manager.save()
        print("lists", manager.latest_checkpoint, *manager.checkpoints, flush=True)
    if int(step) == 20 and os.environ["PROCSV_INCARNATION"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
manager.close()
"""


@pytest.mark.long
def test_a_loop_lists_its_checkpoints_at_a_url(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    url = f"file://{tmp_path}/far/loop"
    done = procsv(
        *("launch", "--standby", "off", "--logdir", url, "--backoff", "0s..0s", str(tmp_path / "train.py")),
        XDG_STATE_HOME=str(tmp_path / "state"),
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith(("finds ", "lists "))]
    assert said == [
        "finds None",
        f"lists {url}/ckpt-1 {url}/ckpt-1",
        f"lists {url}/ckpt-2 {url}/ckpt-1 {url}/ckpt-2",
        f"finds {url}/ckpt-2",
        f"lists {url}/ckpt-3 {url}/ckpt-2 {url}/ckpt-3",
    ]


@pytest.mark.long
def test_a_fit_resumes_at_a_url_and_an_earlier_fit_is_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    program, url = str(Path(keras_two_fits.__file__)), f"file://{tmp_path}/far/fits"
    with launched(tmp_path / "alone", program, "--quick") as alone:
        wanted = alone.digest_at_end()
    quick = ("--backoff", "0s..0s", "--snapshot-secs", "0.05", "--fault", "kill trainer at step 38")
    done = procsv("launch", "--standby", "off", "--logdir", url, *quick, program)
    assert done.returncode == 0, done.stderr
    assert f"digest {wanted}" in done.stdout
    assert (done.stdout + done.stderr).count("fits at a URL") == 2, "each attempt says so at its second fit"
    journal = [json.loads(line) for line in find_paths(url).journal.read_text().splitlines()]
    begun = [(entry["fit"], entry["how"]) for entry in journal if entry["event"] == "fit_begun"]
    assert begun == [(1, "fresh"), (2, "fresh"), (1, "again"), (2, "resumed")]


FIT = """
import sys
import keras
import numpy as np

x = np.zeros((32, 4), "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, :1], epochs=2, verbose=0, callbacks=[keras.callbacks.BackupAndRestore(sys.argv[1])])
print("has trained", flush=True)
"""


@pytest.mark.long
def test_a_fit_that_does_not_know_procsv_is_left_to_keras_at_a_url(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FIT)
    done = procsv(
        *("launch", "--standby", "off", "--drop-in", "--logdir", f"file://{tmp_path}/far/fit"),
        *(str(tmp_path / "train.py"), str(tmp_path / "backup")),
        XDG_STATE_HOME=str(tmp_path / "state"),
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert said.count("has trained") == 1
    assert said.count("remains Keras' own") == 1
