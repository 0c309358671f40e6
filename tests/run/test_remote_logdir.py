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
from tests.support.launched import procsv, python

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
