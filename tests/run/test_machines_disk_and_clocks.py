"""Several machines share a directory that may fill up or go stale, and their clocks need not agree."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event

from procsv.base.run.paths import find_paths
from procsv.base.system import stale
from procsv.base.system.locks import is_lock_free
from procsv.services.summary.continuity import check_continuity
from procsv.services.summary.event_file import read_records
from tests.run.test_machines_cut_off import PROGRAM, end, says, wait_trains
from tests.support.launched import LAUNCH, Launched, procsv
from tests.support.machines import machines
from tests.support.programs import ROOT
from tests.support.stale_mount import StaleMount

pytestmark = pytest.mark.fault

TASKS = ("chief", "worker.0")
OPTIONS = ("--peer-timeout", "60", "--grace", "12", "--backoff", "0..0")  # no member is lost, even on a busy machine
BEHIND_S = 600
CLOCK = f"""
import time
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() - {BEHIND_S}
time.time_ns = lambda: _time_ns() - {BEHIND_S} * 10**9
"""  # for every process of a machine with a wrong clock
RECORDS = """
import itertools, os, threading, time
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from procsv.training.runtime.context import current
from tests.support.numpy_training import train_until

logdir, task, streams = os.environ["PROCSV_LOGDIR"], os.environ["PROCSV_TASK"], current().connection.streams
writer = streams.open_stream(os.path.join(logdir, task))

def record():
    for number in itertools.count(int(os.environ["PROCSV_INCARNATION"]) * 1_000_000):
        summary = Summary(value=[Summary.Value(tag="number", simple_value=number)])
        streams.add_event(writer, Event(step=number, wall_time=time.time(), summary=summary).SerializeToString())
        if streams.flush_stream(writer, 60):
            print(f"recorded {number}\\n", end="")  # one line, whatever else prints
        threading.Event().wait(0.05)

threading.Thread(target=record, daemon=True).start()
if task != "chief":
    threading.Event().wait()
train_until(lambda _: os.path.exists(os.path.join(logdir, "end")), 0.01)  # of what is stale it says that it is not there
"""


@pytest.mark.long
def test_row_76_a_shared_directory_that_is_full_for_a_while_costs_no_machine_and_saving_goes_on(tmp_path: Path) -> None:
    fault = "fill logdir for 15s at step 60"  # so that an attempt to save falls within it
    options = (*OPTIONS, "--fault", fault)
    with machines(tmp_path, TASKS, *options, program=PROGRAM, PYTHONPATH=str(ROOT)) as run:
        chief = run.launch_all()
        (failed,) = chief.wait_event("checkpoint_failed")
        assert "No space left" in failed["error"]
        saved = len(chief.events("checkpoint_durable"))
        chief.wait_event("checkpoint_durable", saved + 2)
        assert not chief.events("member_lost")
        assert not [entry for entry in chief.events("exited") if entry["role"] in TASKS]
        end(run)

        assert run.codes() == dict.fromkeys(TASKS, 0)


def wait_recorded(chief: Launched, logdir: Path, more: int) -> None:
    """Wait until each task has recorded that many more."""
    wanted = {task: len(recorded(logdir, task)) + more for task in TASKS}
    chief.wait_for("more records", lambda: all(len(recorded(logdir, task)) >= wanted[task] for task in TASKS))


def recorded(logdir: Path, task: str) -> list[int]:
    """Return what the task has printed about its records, in all attempts."""
    logs = (logdir / "procsv" / "logs").glob(f"{task}.*.log")
    whole = [stale.try_again(log.read_text).rpartition("\n")[0] for log in sorted(logs)]
    lines = [line for text in whole for line in text.splitlines()]
    return [int(line.split()[1]) for line in lines if line.startswith("recorded ")]


def is_locked(directory: Path) -> bool:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return not is_lock_free(fd)
    finally:
        os.close(fd)


@pytest.mark.long
def test_row_76_handles_that_go_stale_during_a_save_cost_no_machine_no_task_and_no_record(
    tmp_path: Path, stale_files: StaleMount
) -> None:
    with machines(tmp_path, TASKS, *OPTIONS, program=RECORDS, PYTHONPATH=str(ROOT)) as run:
        chief, paths = run.launch_all(), find_paths(run.logdir)
        wait_trains(chief)
        wait_recorded(chief, run.logdir, 3)
        for failures in (1, 2):
            saved = len(chief.events("checkpoint_durable"))
            stale_files.make_stale_at(".data-")
            chief.wait_event("checkpoint_failed", failures)
            wait_recorded(chief, run.logdir, 3)
            chief.wait_event("checkpoint_durable", saved + 2)
        for directory in (paths.home, paths.tasks / "worker.0"):
            chief.wait_for(f"the lock on {directory}", partial(is_locked, directory))
        assert {failed["error"] for failed in chief.events("checkpoint_failed")} == {"[Errno 116] Stale file handle"}
        assert not chief.events("member_lost")
        assert not chief.events("exited")
        met = {row["role"]: stale_files.met_by(row["pid"]) for row in chief.status()["processes"]}
        assert all(met.values()), f"each had files open: {met}"
        assert stale_files.met_by(run.launches["worker.0"].process.pid)

        chief.kill("chief")
        chief.wait_event("recovered", 2, "chief")
        wait_recorded(chief, run.logdir, 3)
        end(run)
        assert run.codes() == dict.fromkeys(TASKS, 0)
        assert "filesystem has lost" not in chief.said()
        for task in TASKS:
            numbers = recorded(run.logdir, task)
            assert numbers == sorted(set(numbers)), "each line is in its log, once"
            assert set(numbers) <= set(steps_of(run.logdir / task))


@pytest.mark.long
def test_row_76_a_shared_directory_that_is_stale_for_a_while_costs_no_machine_and_saving_goes_on(
    tmp_path: Path, stale_files: StaleMount
) -> None:
    with machines(tmp_path, TASKS, *OPTIONS, program=RECORDS, PYTHONPATH=str(ROOT)) as run:
        chief = run.launch_all()
        wait_trains(chief)
        wait_recorded(chief, run.logdir, 3)
        saved, failed = len(chief.events("checkpoint_durable")), partial(says, chief, "be saved: ")
        stale_files.lose()  # as if its server was set up again, until it is mounted again
        chief.wait_for("word of it", failed)
        stale_files.find()

        chief.wait_event("checkpoint_durable", saved + 2)
        wait_recorded(chief, run.logdir, 3)
        assert not chief.events("member_lost")
        assert not chief.events("exited")
        end(run)
        assert run.codes() == dict.fromkeys(TASKS, 0)
        for task in TASKS:
            assert set(recorded(run.logdir, task)) <= set(steps_of(run.logdir / task))


def steps_of(folder: Path) -> list[int]:
    """Return the steps in its event files. Each must be there once."""
    found = check_continuity(folder)
    assert not found.problems
    return [Event.FromString(record).step for path in folder.iterdir() for record in read_records(path)[0]]


@pytest.mark.long
def test_row_76_a_chief_whose_clock_is_ten_minutes_behind_resumes_from_the_newest_state(
    tmp_path: Path,
) -> None:
    behind = tmp_path / "behind"
    behind.mkdir()
    (behind / "sitecustomize.py").write_text(CLOCK)
    paths = f"{behind}:{ROOT}"
    with machines(tmp_path, TASKS, *OPTIONS, program=PROGRAM, PYTHONPATH=str(ROOT)) as run:
        run.launch("worker.0", launcher=LAUNCH, PYTHONPATH=paths)  # one of two machines has a slow clock
        chief = run.launch("chief", launcher=LAUNCH)
        wait_trains(chief)
        chief.kill("worker.0")
        chief.wait_event("spawned", 2, "worker.0")
        assert not chief.events("member_lost")
        chief.process.terminate()
        assert run.codes() == dict.fromkeys(TASKS, 75)
        (stopped,) = chief.events("stopped")
        began_s = chief.events("run_started")[0]["time"]

        run.launch("worker.0", launcher=LAUNCH)
        chief = run.launch("chief", launcher=LAUNCH, PYTHONPATH=paths)  # its scheduler starts it on that one
        wait_trains(chief, 2)
        second = chief.events("run_started")[1]
        assert second["time"] < began_s, "the clock is wrong indeed"
        assert chief.events("recovered", "chief")[-1]["step"] == stopped["durable_step"] == stopped["step"]
        chief.wait_event("checkpoint_durable", len(chief.events("checkpoint_durable")) + 2)
        end(run)

        assert run.codes() == dict.fromkeys(TASKS, 0)
        saved = [entry["step"] for entry in chief.events("checkpoint_durable")]
        assert saved == sorted(saved)
        newest = (run.logdir / "checkpoint").read_text().splitlines()[0]
        assert newest.endswith(f'-{chief.events("run_completed")[0]["step"]}"')
        account = json.loads(procsv("report", str(run.logdir), "--json").stdout)
        assert all(seconds >= 0 for seconds in account["seconds"].values())
        assert account["wall_seconds"] < BEHIND_S
