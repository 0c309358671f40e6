"""When the shared memory of a live run is swept, checkpoints and recovery go on, and nothing
unsaved is reported as saved.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from procsv.base.run.paths import find_paths
from procsv.ipc.shm.slot_header import scan_slots
from tests.support.launched import Launched, launched, procsv, remove_live
from tests.support.programs import ROOT, freeze

pytestmark = pytest.mark.fault

NUMPY = ("tests.support.numpy_training", "1000000", "0.01")
DIGITS = ("procsv.examples.digits", "--steps", "1000000", "--save-model-secs", "1", "--step-ms", "5")
OPTIONS = ("--backoff", "0.05s..0.1s")
AT_CWD, RENAME_EXCHANGE = -100, 2  # for renameat2


def shm_of(run: Launched) -> Path:
    return find_paths(run.logdir).shm_dir


def saves_again(run: Launched) -> int:
    """Wait for a checkpoint made from now on. Return its step."""
    durable = run.events("checkpoint_durable")[-1]["step"]
    run.wait_for("a later checkpoint", lambda: run.events("checkpoint_durable")[-1]["step"] > durable)
    return int(run.events("checkpoint_durable")[-1]["step"])


def ends_with_its_last_step_on_disk(run: Launched) -> None:
    assert run.wait_end() == 75, run.said()
    assert run.events("checkpoint_durable")[-1]["step"] == run.events("exited", "trainer")[-1]["step"]
    has_no_traceback(run)


def has_no_traceback(run: Launched) -> None:
    assert "Traceback" not in run.said()
    for log in (run.logdir / "procsv" / "logs").iterdir():
        assert "Traceback" not in log.read_text(), log


def goes_on_without_its_shared_memory(run: Launched) -> None:
    """Sweep the memory of `run`, sweep again and kill its trainer right after, then stop the run."""
    run.wait_event("recovered")
    run.wait_event("checkpoint_durable", 2)
    remove_live(shm_of(run))
    saves_again(run)
    run.wait_event("ground_restored", role="watchdog")
    assert run.events("ground_lost", "watchdog")[0]["path"] == str(shm_of(run))
    assert shm_of(run).stat().st_mode & 0o777 == 0o700
    for slot in shm_of(run).glob("slot.*"):
        slot.unlink()
    run.wait_event("ground_restored", role="trainer")
    assert run.events("ground_lost", "trainer")[0]["what"] == "slot"
    saves_again(run)
    run.wait_for("no more loss in status", lambda: run.status()["ground_error"] is None)
    shown = run.status()
    assert (shown["save_error"], shown["restarts"]) == (None, 0)

    kept = saves_again(run)
    remove_live(shm_of(run))
    run.kill("trainer")
    recovered = run.wait_event("recovered", 2)[-1]
    assert recovered["step"] >= kept
    assert recovered["source"] in ("memory", "checkpoint")
    saves_again(run)
    assert not run.events("state_suspected")
    assert "no snapshots in " not in run.said()
    assert procsv("stop", str(run.logdir)).returncode == 0
    ends_with_its_last_step_on_disk(run)


@pytest.mark.long
def test_row_49_checkpoints_and_recovery_go_on_after_shared_memory_is_removed(tmp_path: Path) -> None:
    with launched(tmp_path / "logdir", *OPTIONS, *NUMPY, cwd=ROOT) as run:
        goes_on_without_its_shared_memory(run)


@pytest.mark.long
def test_row_49_checkpoints_of_a_graph_session_go_on_and_include_the_meta_file(tmp_path: Path) -> None:
    with launched(tmp_path / "logdir", *OPTIONS, *DIGITS) as run:
        goes_on_without_its_shared_memory(run)
        for durable in run.events("checkpoint_durable")[-3:]:
            assert Path(f"{durable['path']}.meta").is_file()


@pytest.mark.long
def test_row_49_checkpoints_go_on_without_launch(tmp_path: Path) -> None:
    launcher = (sys.executable, "-m", DIGITS[0], *DIGITS[1:], "--logdir")
    with launched(tmp_path / "logdir", launcher=launcher) as run:
        run.wait_event("checkpoint_durable", 2)
        remove_live(shm_of(run))
        saves_again(run)
        run.wait_event("ground_restored", role="watchdog")
        saves_again(run)
        assert procsv("stop", str(run.logdir)).returncode == 0
        run.wait_end()
        assert run.events("stopped")[-1]["durable_step"] == run.events("stopped")[-1]["step"]
        has_no_traceback(run)


def test_row_49_a_stop_just_after_the_removal_saves_the_last_state(tmp_path: Path) -> None:
    with launched(tmp_path / "logdir", *OPTIONS, *NUMPY, cwd=ROOT) as run:
        run.wait_event("recovered")
        run.wait_event("checkpoint_durable", 2)
        remove_live(shm_of(run))
        run.kill("watchdog", signal.SIGTERM)
        ends_with_its_last_step_on_disk(run)


def test_row_49_a_state_lost_with_the_memory_before_its_save_is_named_and_ends_the_run_with_70(
    tmp_path: Path,
) -> None:
    waits = "trainer.import@2=sleep(600)"  # delay the next trainer, which would take the state on disk for the newest
    with launched(tmp_path / "logdir", *NUMPY, "600", cwd=ROOT, PROCSV_FAILPOINTS=waits) as run:
        run.wait_event("checkpoint_durable")
        run.wait_for("a snapshot after the first checkpoint", lambda: run.status()["memory_step"] > 10)
        freeze(run.pid("trainer"))  # otherwise it would capture its state again
        newest = scan_slots(shm_of(run))[0].step
        remove_live(shm_of(run))
        run.kill("trainer")
        run.wait_event("restarting")
        run.kill("watchdog", signal.SIGTERM)
        assert run.wait_end() == 70, run.said()
        named = re.search(r"step (\d+) was only", run.events("gave_up")[-1]["why"])
        assert named is not None, run.events("gave_up")
        assert 0 < int(named[1]) <= newest
        assert named[0] in run.said()
        assert [entry["step"] for entry in run.events("checkpoint_durable")] == [0]
        has_no_traceback(run)


def put_a_file_in_place_of(directory: Path) -> None:
    """Replace the directory atomically, so that no process finds it missing and makes it again."""
    gone = directory.with_name(f".{directory.name}.gone")
    gone.touch()
    paths = (AT_CWD, os.fsencode(gone), AT_CWD, os.fsencode(directory))
    if ctypes.CDLL(None, use_errno=True).renameat2(*paths, RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    shutil.rmtree(gone)


@pytest.mark.long
def test_row_49_checkpoints_go_on_by_staging_when_something_else_lies_where_the_memory_was(tmp_path: Path) -> None:
    with launched(tmp_path / "logdir", *OPTIONS, *NUMPY, cwd=ROOT) as run:
        run.wait_event("checkpoint_durable", 2)
        put_a_file_in_place_of(shm_of(run))
        try:
            run.wait_event("ground_lost", role="watchdog")
            saves_again(run)
            where = str(shm_of(run))  # `status` reads run.json here, which follows within a second
            run.wait_for("the loss in status", lambda: where in (run.status()["ground_error"] or ""))
            run.kill("trainer")
            run.wait_event("recovered", 2)
            saves_again(run)
            run.kill("watchdog", signal.SIGTERM)
            ends_with_its_last_step_on_disk(run)
        finally:
            shm_of(run).unlink()


# Trains as the other one, but its state cannot be captured while the file FLAG exists.
UNTAKEN = """
import sys
from pathlib import Path
from tests.support import numpy_training
from tests.support.numpy_state import NumpyState

class Untaken(NumpyState):
    def capture(self, into):
        if Path(sys.argv[1]).exists():
            raise OSError("the state is out of reach")
        return super().capture(into)

numpy_training.NumpyState = Untaken
numpy_training.main(1_000_000, 0.01)
"""


@pytest.mark.long
def test_row_49_a_state_that_cannot_be_captured_is_reported_and_shown_and_never_counts_as_saved(tmp_path: Path) -> None:
    flag, program = tmp_path / "flag", tmp_path / "untaken.py"
    program.write_text(UNTAKEN)
    with launched(tmp_path / "logdir", *OPTIONS, str(program), str(flag), PYTHONPATH=str(ROOT)) as run:
        run.wait_event("checkpoint_durable", 2)
        flag.touch()
        run.wait_event("snapshot_failed")
        assert "out of reach" in run.status()["save_error"]
        flag.unlink()
        run.wait_event("snapshots_resumed")
        saves_again(run)
        assert run.status()["save_error"] is None
        flag.touch()
        run.wait_event("snapshot_failed", 2)
        run.wait_for(
            "a step that is not saved", lambda: run.status()["step"] > run.events("checkpoint_durable")[-1]["step"]
        )
        run.kill("watchdog", signal.SIGTERM)
        assert run.wait_end() == 70, run.said()
        last = run.events("exited", "trainer")[-1]["step"]
        assert run.events("checkpoint_durable")[-1]["step"] < last
        assert f"step {last} could not be " in run.said()
