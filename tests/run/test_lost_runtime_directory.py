"""Training, checkpoints and commands go on when the runtime directory is swept or full."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

import pytest

from procsv.base.identity import TRAINER
from procsv.base.run.paths import find_paths
from procsv.base.run.run_file import read_run
from tests.support.launched import NOT_SAVED, Launched, launched, procsv, remove_live
from tests.support.programs import ROOT
from tests.support.small_places import small_filesystem

pytestmark = pytest.mark.fault

PROGRAM = ("tests.support.numpy_training", "1000000", "0.01")
OPTIONS = ("--backoff", "0.05s..0.1s", "--standby", "warm")


def sweep(run: Launched, directory: Path, count: int) -> None:
    """Remove the runtime directory, or one of its parents, and wait until it is back for the `count`th time."""
    paths = find_paths(run.logdir)
    remove_live(directory)
    run.wait_event("ground_restored", count)
    for path in (paths.saver_plan, paths.loaded, paths.stacks(TRAINER, run.status()["incarnation"])):
        run.wait_for(path.name, path.exists)


def saves_again(run: Launched) -> None:
    durable = run.events("checkpoint_durable")[-1]["step"]
    run.wait_for("a later checkpoint", lambda: run.events("checkpoint_durable")[-1]["step"] > durable)


@pytest.mark.long
def test_row_50_training_checkpoints_and_recovery_go_on_without_the_runtime_directory(
    tmp_path: Path,
) -> None:
    logdir = tmp_path / "logdir"
    with launched(logdir, *OPTIONS, *PROGRAM, cwd=ROOT, standby=None) as run:
        run.wait_event("checkpoint_durable")
        run.wait_event("standby_ready")
        pids = {role: run.pid(role) for role in ("trainer", "checkpoint", "summary")}
        run_dir = find_paths(logdir).run_dir
        for count, directory in enumerate((run_dir, run_dir.parent), 1):
            sweep(run, directory, count)
            saves_again(run)
        assert {role: run.pid(role) for role in pids} == pids
        run.wait_for("no more loss in status", lambda: run.status()["ground_error"] is None)
        shown = run.status()
        assert (shown["save_error"], shown["restarts"]) == (None, 0)
        step = shown["step"]

        run.kill("checkpoint")
        run.wait_for("another service", lambda: run.pid("checkpoint") != pids["checkpoint"])
        saves_again(run)
        run.kill("trainer")
        recovered = run.wait_event("recovered", 2)[-1]
        assert recovered["source"] in ("memory", "checkpoint")
        assert recovered["step"] >= step
        assert [entry["standby"] for entry in run.events("promoted")] == [1]
        sweep(run, run_dir, 3)
        stopped = procsv("stop", str(logdir))
        assert stopped.returncode == 0, stopped.stderr
        assert run.wait_end() == 75, run.said()
        assert "Traceback" not in run.said()
        for log in (logdir / "procsv" / "logs").iterdir():
            assert "Traceback" not in log.read_text(), log


def test_row_50_a_detached_run_needs_nothing_that_the_last_logout_removes(tmp_path: Path) -> None:
    logdir, login = tmp_path / "logdir", Path(os.environ["XDG_RUNTIME_DIR"])
    program = tmp_path / "idle.py"
    program.write_text("import signal\nsignal.pause()\n")
    done = procsv("launch", "--detach", "--logdir", str(logdir), "--grace", "4s", str(program))
    assert done.returncode == 0, done.stderr
    run = read_run(logdir / "procsv" / "run.json")
    assert run is not None
    assert not Path(run.run_dir).is_relative_to(login)
    remove_live(login)
    login.mkdir(mode=0o700)
    stopped = procsv("stop", str(logdir))
    assert stopped.returncode == 0, stopped.stderr
    run = read_run(logdir / "procsv" / "run.json")
    assert run is not None
    assert run.exit_code in NOT_SAVED
    assert run.ground_error is None


# -- full directory --------------------------------------------------------------------------------------------
SMALL_BYTES = 2**20
only_root_mounts = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small filesystem")


def small(filler: int = 0) -> tuple[str, ...]:
    """Give the run a runtime directory of SMALL_BYTES, with `filler` of them used."""
    return small_filesystem(os.environ["XDG_RUNTIME_DIR"], SMALL_BYTES, filler)


def filler(run: Launched) -> Path:
    """Return the filler file as seen from the watchdog's mount namespace."""
    return Path(f"/proc/{run.process.pid}/root{os.environ['XDG_RUNTIME_DIR']}") / "filler"


def fill(run: Launched) -> bool:
    """Fill all room that has become free."""
    with contextlib.suppress(OSError), filler(run).open("ab", buffering=0) as file:
        while True:
            file.write(bytes(512))
    return True


def kill_until_delayed(run: Launched) -> int:
    """Kill each new trainer until the next one has to wait. Return how many were killed."""
    for number in itertools.count(1):
        run.wait_spawned("trainer", number)
        run.kill("trainer")
        if run.wait_event("restarting", number)[-1]["delay"] > 0.0:
            return number
    raise AssertionError


@only_root_mounts
def test_row_52_a_full_runtime_directory_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    logdir = tmp_path / "logdir"
    with launched(logdir, *PROGRAM, cwd=ROOT, within=small(SMALL_BYTES - 2**12)) as run:
        assert run.wait_end() == 73
        assert "No space left on device; " in run.said()
        assert "Traceback" not in run.said()
        assert run.events("spawned") == []


@pytest.mark.long
@only_root_mounts
def test_row_52_a_runtime_directory_that_fills_up_later_only_makes_a_trainer_wait(tmp_path: Path) -> None:
    logdir = tmp_path / "logdir"
    options = ("--standby", "off", "--backoff", "5s..5s")
    with launched(logdir, *options, *PROGRAM, cwd=ROOT, within=small()) as run:
        run.wait_event("checkpoint_durable")
        fill(run)
        saves_again(run)
        number = kill_until_delayed(run) + 1
        beat = find_paths(logdir).heartbeat(TRAINER, number)
        said = f"cannot start the trainer: [Errno 28] No space left on device: '{beat}'"
        run.wait_for("word of it", lambda: fill(run) and said in run.said())
        assert run.status()["state"] == "backoff"
        recovered = len(run.events("recovered"))
        filler(run).unlink()
        run.wait_event("recovered", recovered + 1)
        saves_again(run)
        assert procsv("stop", str(logdir)).returncode == 0
        assert run.wait_end() == 75, run.said()
        assert "Traceback" not in run.said()
