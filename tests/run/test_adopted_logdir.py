"""A launch without --logdir uses the directory that the program names, and the run is found from
both directories.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest

from procsv.base.run.adoption import root_of
from procsv.base.run.lease import LeaseFile
from procsv.base.run.paths import find_paths
from procsv.base.run.run_file import read_run
from tests.support.launched import NEWS_S_MAX, NOT_SAVED, Launched, launched, procsv
from tests.support.replicas import wait_for_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

# Runs `procsv launch` without --logdir; the first argument is the expected logdir.
LAUNCH = "import os, sys; os.execv(sys.executable, [sys.executable, '-m', 'procsv', 'launch', *sys.argv[2:]])"

TRAIN = """
import os, sys, tempfile, time
import tensorflow as tf

tf1 = tf.compat.v1
tf1.disable_eager_execution()
kind, place, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
logdir = tempfile.mkdtemp(dir=place) if kind.endswith("-new") else place
step = tf1.train.get_or_create_global_step()
total = tf1.get_variable("total", [], tf.float64, initializer=tf1.zeros_initializer())
with tf.control_dependencies([total.assign_add(tf.cast(step, tf.float64))]):
    train = step.assign_add(1)

def wait(now, should_stop):
    time.sleep(0.01)
    while now == steps - 50 and not os.path.exists("open") and not should_stop():  # nearly over: it waits for the test
        time.sleep(0.01)

def loop(session, should_stop):
    now = 0
    while not should_stop() and now < steps:
        now = session.run(train)
        wait(now, should_stop)
    print("ended at", now, "with", session.run(total), flush=True)

if kind.startswith("supervisor"):
    supervisor = tf1.train.Supervisor(logdir=logdir, save_model_secs=1)
    with supervisor.managed_session() as session:
        loop(session, supervisor.should_stop)
    supervisor.stop()
else:
    hooks = [tf1.train.StopAtStepHook(steps)]
    with tf1.train.MonitoredTrainingSession(checkpoint_dir=logdir, save_checkpoint_secs=1, hooks=hooks) as session:
        while not session.should_stop():
            now = session.run(train)
            wait(now, session.should_stop)
    print("ended at", now, flush=True)
"""

# Uses its directory as a Supervisor does, without TensorFlow.
NAMES = """
import shutil, sys, threading
from procsv.training.runtime.context import current
from procsv.training.runtime.program_logdir import settle_logdir

if sys.argv[1] == "deletes":
    shutil.rmtree(sys.argv[2], ignore_errors=True)
stopped = threading.Event()
current().stops.add_listener(lambda reason: stopped.set())
for given in sys.argv[2:]:
    print("uses", settle_logdir(current(), given), flush=True)
if sys.argv[1] != "ends":
    with current().held_run():
        print("begun", flush=True)
        stopped.wait()
"""


@contextlib.contextmanager
def run_in(place: Path, program: str, *args: str, name: str = "train", to: str = "", **env: Any) -> Iterator[Launched]:
    """Run `procsv launch ARGS…` in `place` for a program `name` that should use the directory `to` under runs/."""
    (place / f"{name}.py").write_text(program)
    command = [arg.replace("PROGRAM", f"{name}.py") for arg in args]
    with launched(
        place / "runs" / (to or name), *command, cwd=place, launcher=(sys.executable, "-c", LAUNCH), **env
    ) as run:
        yield run


def begun(run: Launched, times: int = 1) -> None:
    """`times`: what earlier launches have printed is in the same file."""
    run.wait_for("its directory", lambda: run.said().count("begun") == times)


def kill_trainer(run: Launched, place: Path) -> None:
    """Kill the trainer once it has more than its first state to resume from, then let it finish."""
    wait_for_memory(run, 0)
    run.kill("trainer")
    (place / "open").touch()


def sum_below(steps: int) -> float:
    return steps * (steps - 1) / 2


@pytest.mark.fault
@pytest.mark.long
def test_checkpoints_go_where_the_supervisor_says_and_both_directories_lead_to_the_run(tmp_path: Path) -> None:
    logdir = tmp_path / "logs"
    train = ("--drop-in", "PROGRAM", "supervisor", "logs")
    with run_in(tmp_path, TRAIN, *train, "400") as run:
        run.wait_event("checkpoint_durable")
        kill_trainer(run, tmp_path)
        assert run.wait_end() == 0
    durable = run.events("checkpoint_durable")
    assert {Path(entry["path"]).parent for entry in durable} == {logdir}
    assert run.events("recovered")[1]["step"] > 0
    assert f"ended at 400 with {sum_below(400)}" in run.said()
    assert "events go to logs," in run.said()
    assert list(logdir.glob("events.out.tfevents.*"))
    assert sorted(path.name for path in (logdir / "procsv").iterdir()) == ["pointer.json"]
    assert [path.name for path in run.logdir.iterdir()] == ["procsv"]
    for directory in (logdir, run.logdir):
        status = json.loads(procsv("status", str(directory), "--json").stdout)
        assert f"{run.logdir}/procsv" in procsv("status", str(directory)).stdout
        assert (status["logdir"], status["root"], status["state"]) == (str(logdir), str(run.logdir), "done")
        listed = json.loads(procsv("checkpoints", str(directory), "--json").stdout)
        assert listed["checkpoints"][-1]["step"] == 400
        assert json.loads(procsv("report", str(directory), "--json").stdout)["logdir"] == str(logdir)
        assert "ended at 400" in procsv("logs", str(directory)).stdout

    # The same command resumes there, from the first moment.
    with run_in(tmp_path, TRAIN, "--resume", *train, "400") as run:
        assert run.wait_end() == 0
    assert f"ended at 401 with {sum_below(401)}" in run.said()  # it takes a step before it looks
    assert "run directory runs/train, " in run.said()
    assert "from step 400 on disk" in run.said()
    assert len(run.events("logdir_adopted")) == 1

    # With --logdir, other arguments resume it.
    with run_in(tmp_path, TRAIN, *train, "500") as run:
        assert run.wait_end() == 2
    assert "procsv launch --logdir logs …" in run.said()
    with run_in(tmp_path, TRAIN, "--logdir", "logs", *train, "500") as run:
        assert run.process.wait() == 0
    assert f"ended at 500 with {sum_below(500)}" in run.said()


@pytest.mark.fault
@pytest.mark.long
def test_a_program_that_names_a_new_directory_at_each_start_resumes_in_its_first_until_asked_for_a_new_run(
    tmp_path: Path,
) -> None:
    train = ("PROGRAM", "monitored-new", ".", "300")
    with run_in(tmp_path, TRAIN, "--drop-in", *train) as run:
        run.wait_event("checkpoint_durable")
        kill_trainer(run, tmp_path)
        assert run.wait_end() == 0
    first = Path(run.events("logdir_adopted")[0]["logdir"])
    assert {Path(entry["path"]).parent for entry in run.events("checkpoint_durable")} == {first}
    assert run.events("recovered")[1]["step"] > 0
    assert run.said().count(f"continues in {first}") == 1
    made = [path for path in tmp_path.glob("tmp*") if path != first]
    assert [list(path.iterdir()) for path in made] == [[]]  # the second start's directory, which is not used

    with run_in(tmp_path, TRAIN, "--new", "--drop-in", *train, to="train-2") as run:
        assert run.wait_end() == 0
    assert run.events("recovered")[0]["source"] == "fresh"
    assert Path(run.events("logdir_adopted")[0]["logdir"]) not in (first, *made)

    with run_in(tmp_path, TRAIN, "--drop-in", *train, to="train-2") as run:  # the newest one counts
        assert run.wait_end() == 0
    assert "nothing to do: " in run.said()


def names(*given: str, kind: str = "stays") -> tuple[str, ...]:
    return ("PROGRAM", kind, *given)


@pytest.mark.fault
def test_row_57_a_logdir_adopted_by_another_run_is_refused_and_the_error_names_that_run(tmp_path: Path) -> None:
    with run_in(tmp_path, NAMES, *names("logs")) as run:
        begun(run)
        with run_in(tmp_path, NAMES, *names("logs"), name="other") as other:
            assert other.wait_end() == 70
        assert f"{tmp_path}/logs is in use: " in other.said()
        assert f"procsv status {tmp_path}/logs" in other.said()
        told = procsv("launch", "--logdir", str(tmp_path / "logs"), str(tmp_path / "train.py"), "stays", "logs")
        assert (told.returncode, f"process {run.process.pid}" in told.stderr) == (73, True)
        assert procsv("stop", str(tmp_path / "logs")).returncode == 0
        assert run.wait_end() in NOT_SAVED
    assert not LeaseFile(find_paths(tmp_path / "logs")).read_lease()


@pytest.mark.fault
@pytest.mark.long
def test_row_57_the_leftovers_of_a_killed_watchdog_protect_its_adopted_logdir(tmp_path: Path) -> None:
    with run_in(tmp_path, NAMES, *names("logs")) as run:
        begun(run)
        trainer = psutil.Process(run.kill("trainer", signal.SIGSTOP))
        roles = ("watchdog", "checkpoint", "summary")
        others = [psutil.Process(run.pid(role)) for role in roles]  # while they exist: they end together
        for role in roles:
            run.kill(role)
        run.process.wait()
        psutil.wait_procs(others, timeout=NEWS_S_MAX)
        told = procsv("launch", "--logdir", str(tmp_path / "logs"), str(tmp_path / "train.py"), "stays", "logs")
        assert (told.returncode, "still run; " in told.stderr) == (73, True)

        trainer.send_signal(signal.SIGCONT)
        psutil.wait_procs([trainer], timeout=NEWS_S_MAX)
    with run_in(tmp_path, NAMES, *names("logs")) as run:
        begun(run, 2)
        assert run.said().count("uses logs") == 2  # as the program has written it
        run.process.send_signal(signal.SIGTERM)
        assert run.wait_end() in NOT_SAVED


@pytest.mark.fault
@pytest.mark.long
def test_a_run_with_its_own_logdir_there_ends_the_adoption_and_the_next_launch_adopts_again(tmp_path: Path) -> None:
    with run_in(tmp_path, NAMES, *names("logs", kind="ends")) as run:
        assert run.wait_end() == 0
    assert root_of(tmp_path / "logs") == run.logdir
    again = ("launch", "--standby", "off", "--logdir", str(tmp_path / "logs"), str(tmp_path / "train.py"), "ends")
    ended = procsv(*again)
    assert ended.returncode == 0
    assert root_of(tmp_path / "logs") is None
    assert json.loads(procsv("status", str(tmp_path / "logs"), "--json").stdout)["root"] == ""
    with run_in(tmp_path, NAMES, *names("logs", kind="ends")) as run:
        assert run.wait_end() == 0
    assert root_of(tmp_path / "logs") == run.logdir
    assert len(run.events("logdir_adopted")) == 2


@pytest.mark.fault
def test_a_program_given_another_directory_is_refused_with_the_option_to_use(tmp_path: Path) -> None:
    with run_in(tmp_path, NAMES, *names("logs", kind="ends")) as run:
        assert run.wait_end() == 0
    with run_in(tmp_path, NAMES, *names("more/of/it", kind="ends")) as run:
        assert run.wait_end() == 2
    for command in ("`train.py ends logs`", "`train.py ends more/of/it`"):
        assert command in run.said()
    assert "procsv launch --logdir logs …" in run.said()
    with run_in(tmp_path, NAMES, *names("two", "three", kind="ends"), name="both") as run:
        assert run.wait_end() == 70
    assert re.search(f" {tmp_path}/three, .* {tmp_path}/two", run.said())


@pytest.mark.fault
@pytest.mark.long
def test_row_57_a_program_that_deletes_its_directory_at_each_start_keeps_the_link_to_its_run(tmp_path: Path) -> None:
    with run_in(tmp_path, NAMES, *names("logs", kind="deletes")) as run:
        begun(run)
        run.kill("trainer")
        begun(run, 2)
        (tmp_path / "logs").mkdir(exist_ok=True)  # as a Supervisor does
        run.wait_for("the pointer", lambda: root_of(tmp_path / "logs") == run.logdir)
        run.wait_for("the lease", lambda: LeaseFile(find_paths(tmp_path / "logs")).holder())
        run.process.send_signal(signal.SIGTERM)
        assert run.wait_end() in NOT_SAVED


DELETES = TRAIN.replace(
    "step = tf1.train",
    """if os.path.exists(logdir):
    tf.io.gfile.rmtree(logdir)
os.makedirs(logdir)  # an error if somebody else has made it
step = tf1.train""",
    1,
)


@pytest.mark.fault
@pytest.mark.long
def test_row_57_a_program_that_deletes_its_directory_resumes_after_a_stop_and_starts_over_after_its_end(
    tmp_path: Path,
) -> None:
    train = ("--drop-in", "PROGRAM", "supervisor", "logs")
    with run_in(tmp_path, DELETES, *train, "300") as run:
        run.wait_step(50)
        run.process.send_signal(signal.SIGTERM)
        assert run.wait_end() == 75
    (tmp_path / "open").touch()
    stopped = run.events("checkpoint_durable")[-1]["step"]
    with run_in(tmp_path, DELETES, *train, "300") as run:
        assert run.wait_end() == 0
    recovered = run.events("recovered")[-1]
    assert (recovered["source"], recovered["step"]) == ("checkpoint", stopped)
    assert run.events("checkpoints_deleted")[-1]["kept"]
    assert f"ended at 300 with {sum_below(300)}" in run.said()
    assert not (run.logdir / "procsv" / "carried").exists()
    with run_in(tmp_path, DELETES, "--resume", *train, "300") as run:
        assert run.wait_end() == 0
    assert run.events("recovered")[-1]["source"] == "fresh"
    assert run.said().count(f"ended at 300 with {sum_below(300)}") == 2


@pytest.mark.fault
@pytest.mark.long
def test_row_57_a_run_ends_loudly_when_another_machine_takes_the_logdir_that_it_has_adopted(tmp_path: Path) -> None:
    with run_in(tmp_path, NAMES, *names("logs")) as run:
        begun(run)
        file = LeaseFile(find_paths(tmp_path / "logs"))
        lease = file.holder()
        assert lease is not None
        file.take_lease(msgspec.structs.replace(lease, run="0123456789abcdef", pid=1, what="another"))
        assert run.wait_end() not in (0, 75)
    assert "another" in run.said()


@pytest.mark.long
def test_a_logdir_moved_with_its_run_or_copied_leads_to_the_right_run(tmp_path: Path) -> None:
    here, there, copy = tmp_path / "here", tmp_path / "there", tmp_path / "copy"
    here.mkdir()
    with run_in(here, NAMES, *names("logs", kind="ends")) as run:
        assert run.wait_end() == 0
    shutil.copytree(here, copy)
    here.rename(there)
    for place in (there, copy):
        assert root_of(place / "logs") == place / "runs" / "train"
        status: dict[str, Any] = json.loads(procsv("status", str(place / "logs"), "--json").stdout)
        assert (status["logdir"], status["root"]) == (str(place / "logs"), str(place / "runs" / "train"))
    (there / "runs" / "train" / "procsv" / "run.json").unlink()
    assert root_of(there / "logs") is None
    assert read_run(copy / "runs" / "train" / "procsv" / "run.json") is not None
