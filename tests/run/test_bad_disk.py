"""A full disk and a lost or read-only logdir are reported, shown in `status` and survived."""

import contextlib
import os
from pathlib import Path

import pytest

from tests.support.launched import Launched, launched
from tests.support.ordinary_rights import ORDINARY_RIGHTS

pytestmark = pytest.mark.fault

PROGRAM = """
import sys, time
from tests.support.numpy_training import training

with training(float(sys.argv[1])) as model:
    while not model.should_stop():
        model.train()
        time.sleep(0.02)
        if model.step % 20 == 0:
            print("has trained", flush=True)
"""


def _set_modes(logdir: Path, mode: int) -> None:
    """Set the mode of the logdir and of all directories in it."""
    for directory, _, _ in list(os.walk(logdir)):
        with contextlib.suppress(FileNotFoundError):  # a temporary file of a save that is ending
            Path(directory).chmod(mode)


def _wait_saved_again(run: Launched, said_before: str) -> None:
    """Wait for "saved again", which a save or a look at the directory reports, and then for a
    durable checkpoint.
    """
    durable = len(run.events("checkpoint_durable"))
    run.wait_for("the end of it", lambda: "saved again" in run.said()[len(said_before) :])
    run.wait_event("checkpoint_durable", durable + 1)
    run.wait_for("no error in status", lambda: run.status()["save_error"] is None)


@pytest.mark.long
def test_a_full_lost_or_read_only_logdir_is_reported_once_and_shown_in_status_while_training_goes_on(
    tmp_path: Path,
) -> None:
    logdir, away, seen = tmp_path / "logdir", tmp_path / "away", tmp_path / "seen"
    (tmp_path / "train.py").write_text(PROGRAM)
    args = (str(tmp_path / "train.py"), "0.5")
    full = f"checkpoint.before_rename=4*enospc->1*await({seen})"
    options = ("--standby", "off", "--grace", "60s")
    with launched(logdir, *options, *args, within=ORDINARY_RIGHTS, PROCSV_FAILPOINTS=full) as run:
        (failed,) = run.wait_event("checkpoint_failed")
        shown = run.wait_for("the error in status", lambda: (s := run.status())["save_error"] and s)
        assert "No space left on device" in failed["error"]
        assert shown["save_error"] == failed["error"]
        assert shown["next_save_in"] >= 0.0
        assert shown["state"] in ("compiling", "running"), "the first state is saved before the first step has ended"
        seen.touch()
        run.wait_event("checkpoint_durable")
        run.wait_for("no more error", lambda: run.status()["save_error"] is None)
        assert run.status()["next_save_in"] is None
        assert len(run.events("checkpoint_failed")) == 1, "four failures for one cause are one piece of news"
        assert "are saved again" in run.said()

        logdir.rename(away)
        run.wait_for("word of it", lambda: f"{logdir} does not exist" in run.said())
        trained = run.said().count("has trained")
        run.wait_for("more training", lambda: run.said().count("has trained") > trained + 1)
        said = run.said()
        away.rename(logdir)
        _wait_saved_again(run, said)

        pids = {row["role"]: row["pid"] for row in run.status()["processes"]}
        _set_modes(logdir, 0o555)
        run.wait_for("word of it", lambda: f"{logdir} cannot be written" in run.said())
        shown = run.wait_for("the error in status", lambda: (s := run.status())["save_error"] and s)
        assert shown["state"] == "running"
        assert "permission denied" in shown["save_error"].lower()  # by a look, or by a save
        run.wait_for("more training", lambda: run.status()["step"] > shown["step"])
        said = run.said()
        _set_modes(logdir, 0o755)
        _wait_saved_again(run, said)
        assert {row["role"]: row["pid"] for row in run.status()["processes"]} == pids
        os.kill(run.process.pid, 2)
        assert run.wait_end() == 75
    printed = run.said().splitlines()  # the trainer logs a failed save, if one was due
    ours = [line for line in printed if line.startswith("procsv: ") and "saved; training continues" not in line]
    for once in ("does not exist", "permission denied"):
        assert len([line for line in ours if once in line]) == 1
    assert len({e["pid"] for e in run.events("spawned") if e["role"] == "trainer"}) == 1


@pytest.mark.long
def test_a_run_that_ends_on_a_full_disk_names_its_step_in_memory_and_the_same_command_saves_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    logdir, args = tmp_path / "logdir", (str(tmp_path / "train.py"), "600")
    with launched(logdir, "--grace", "10s", *args, PROCSV_FAILPOINTS="checkpoint.before_rename=enospc") as run:
        run.wait_step(10)
        run.process.terminate()
        assert run.wait_end() == 70
        step = run.status()["step"]
        last = run.said().rstrip().splitlines()[-1]
    assert f"step {step} is only in " in last
    with launched(logdir, "--grace", "60s", *args) as run:
        assert run.wait_event("recovered", 2)[-1]["step"] == step
        run.process.terminate()
        assert run.wait_end() == 75
