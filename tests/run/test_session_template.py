"""What the runs of the tests start are forks of the session's template, wherever a fork is what a fresh interpreter would be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from procsv.testing.template.client import SESSION
from tests.support.launched import Launched, background, environment, launched, python
from tests.support.leftovers import Leftovers
from tests.support.machines import machines

pytestmark = pytest.mark.skipif(not SESSION.is_on, reason="this session was asked to have no template")

# Says what it finds before it imports anything itself.
PROGRAM = """
import json, os, sys, threading
found = {"has": {"tensorflow", "sklearn.datasets"} <= set(sys.modules), "config": json.loads(os.environ["TF_CONFIG"])}
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
found["resolved"] = [resolver.cluster_spec().as_dict(), resolver.task_type, resolver.task_id]
logdir, task = os.environ["PROCSV_LOGDIR"], os.environ["PROCSV_TASK"]
place = os.path.join(logdir, f"found.{task}.{os.environ['PROCSV_INCARNATION']}")
with open(place + ".new", "w") as file:
    json.dump(found, file)
os.rename(place + ".new", place)
while task != "chief" or not os.path.exists(os.path.join(logdir, "end")):
    threading.Event().wait(0.05)
"""
TASKS = ("chief", "worker.0", "ps.0")


def check(run: Launched, incarnation: int = 1) -> None:
    """All of them were forks, and were told who they are."""
    for task in TASKS:
        place = run.logdir / f"found.{task}.{incarnation}"
        run.wait_for(f"what {task} has found", place.exists)
        role, _, index = task.partition(".")
        found = json.loads(place.read_text())
        assert found["has"], f"{task} has imported TensorFlow itself"
        assert found["config"]["task"] == {"type": role, "index": int(index or 0)}
        assert found["resolved"] == [found["config"]["cluster"], role, int(index or 0)]


def test_tasks_of_one_launch_are_forks_and_find_their_cluster(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    with launched(tmp_path / "run", "--workers", "1", "--ps", "1", "train.py", cwd=tmp_path) as run:
        check(run)
        launch = psutil.Process(run.process.pid)
        assert [path for path in launch.memory_maps() if "tensorflow" in path.path], "it is a fork, too"
        assert launch.cmdline()[2:5] == ["procsv", "launch", "--logdir"], "and looks like what it is"
        assert {psutil.Process(run.pid(task)).ppid() for task in TASKS} == {launch.pid}
        (run.logdir / "end").touch()
        run.assert_completed()


def test_tasks_of_several_launches_are_forks_also_after_these_have_begun_again(tmp_path: Path) -> None:
    with machines(tmp_path, (*TASKS, "spare.0"), "--spare-nodes", "1", "--grace", "10", program=PROGRAM) as run:
        chief = run.launch_all()
        check(chief)
        run.launches["worker.0"].process.send_signal(signal.SIGTERM)  # the spare launch has its task
        check(chief, 2)
        (run.logdir / "end").touch()
        assert run.codes() == {"chief": 0, "worker.0": 75, "ps.0": 0, "spare.0": 0}


SAYS = """
import json, os, sys, tempfile
print(json.dumps({
    "has": "tensorflow" in sys.modules, "name": __name__, "argv": sys.argv[1:], "cwd": os.getcwd(),
    "given": os.environ.get("GIVEN"), "input": sys.stdin.read(), "leads": os.getsid(0) == os.getpid(),
    "temporary": tempfile.gettempdir(), "files": sorted(os.listdir("/proc/self/fd"))[:3],
}), flush=True)
print("an error", file=sys.stderr)
sys.exit(7)
"""


def test_a_program_that_is_run_to_its_end_is_a_fork_with_output_errors_and_code_of_its_own(tmp_path: Path) -> None:
    program = tmp_path / "says.py"
    program.write_text(SAYS)
    done = python(program, "a", "b c", GIVEN="this")
    assert (done.returncode, done.stderr) == (7, "an error\n")
    argv = [sys.executable, "-m", "tests.support.run_path", str(program), "a", "b c"]
    fresh = subprocess.run(
        argv,
        env=environment(GIVEN="this"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (json.loads(fresh.stdout)["has"], fresh.returncode, fresh.stderr) == (False, 7, "an error\n")
    assert json.loads(done.stdout) == {**json.loads(fresh.stdout), "has": True}


def test_a_program_in_the_background_is_ended_with_its_block_and_a_signal_is_how_it_ended(tmp_path: Path) -> None:
    program = tmp_path / "waits.py"
    program.write_text("import signal\nsignal.pause()\n")
    with (
        (tmp_path / "output").open("w") as output,
        background(program, output=output, errors=output) as process,
    ):
        assert process.poll() is None
    assert process.poll() == -signal.SIGKILL


def test_what_a_test_has_launched_and_left_is_found_though_nothing_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "begun")
    (tmp_path / "waits.py").write_text(f"import signal\nopen({str(tmp_path / 'begun')!r}, 'w')\nsignal.pause()\n")
    (tmp_path / "temporary").mkdir()
    left = Leftovers(tmp_path / "runtime", tmp_path / "temporary", tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "elsewhere"))
    with (
        (tmp_path / "output").open("w") as output,
        background(tmp_path / "waits.py", output=output, errors=output) as process,
    ):
        (tmp_path / "begun").read_bytes()
        assert psutil.Process(process.pid).ppid() == SESSION.pid
        assert [one for one in left.look() if str(process.pid) in one]
    assert not left.found()
