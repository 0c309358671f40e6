"""A chief may die while its model is half restored or half saved, and no step is lost."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from tests.support.launched import Launched, launched, procsv
from tests.support.replicas import (
    JOIN,
    MODEL,
    SERVER,
    TASK,
    memory_step,
    monitored,
    text_of,
    wait_for_memory,
    wait_for_steps,
)

pytestmark = pytest.mark.fault

# While there is a file `closed`, a server that starts does not serve.
CLOSED = """
while role == "ps" and os.path.exists("closed"):
    pause.wait(0.01)
"""
OPTIONS = ("--workers", "1", "--ps", "1", "--drop-in", "--snapshot-secs", "0.2", "train.py")


def ends(run: Launched, task: str) -> list[str | None]:
    """Return the signals that ended its attempts."""
    return [entry["signal"] for entry in run.events("exited", task)]


def awaits_server(run: Launched, task: str) -> bool:
    """Return whether the run knows that the task waits for the server."""
    return "ps.0" in [one["waits_for"] for one in run.status()["tasks"] if one["task"] == task]


@pytest.mark.long
def test_row_58_a_restored_model_without_its_mark_is_restored_again_and_a_marked_one_is_left_alone(
    tmp_path: Path,
) -> None:
    """The chief dies before its mark, in the next restore and after its mark; the worker dies
    waiting for the server.
    """
    (tmp_path / "train.py").write_text(
        TASK + "tf.logging.set_verbosity(tf.logging.INFO)\n" + CLOSED + SERVER + JOIN + MODEL + monitored()
    )
    dies = "trainer.before_mark@2=stop;trainer.restore@3=kill;trainer.compile@4=kill"
    with launched(tmp_path / "run", *OPTIONS, cwd=tmp_path, standby=None, PROCSV_FAILPOINTS=dies) as run:
        for task in ("chief", "worker.0"):
            run.wait_event("ready", 1, task)
        trained = wait_for_steps(run)
        (tmp_path / "closed").touch()
        run.kill("ps.0")
        run.wait_event("spawned", 2, "ps.0")
        for task in ("worker.0", "chief"):  # both are between two sessions
            run.wait_event("session_lost", 1, task)
            run.kill(task)
            run.wait_event("spawned", 2, task)
        run.wait_for("waits for the server", lambda: awaits_server(run, "worker.0") and awaits_server(run, "chief"))
        (tmp_path / "closed").unlink()

        chief = psutil.Process(run.pid("chief"))
        run.wait_for("a chief before its mark", lambda: chief.status() == psutil.STATUS_STOPPED)
        run.wait_for("a worker that waits for it", lambda: "finished initializing" in text_of(run, "worker.0"))
        assert len(run.events("ready", "worker.0")) == 1, "its variables have values, and it is not trained yet"
        run.kill("chief")
        run.wait_event("recovered", 2, "chief")
        again = run.events("recovered", "chief")[1]
        assert (again["incarnation"], again["source"]) == (5, "alive"), "the mark was set last, by the fourth"
        assert again["step"] >= trained
        assert ends(run, "chief") == ["SIGKILL"] * 4, (
            "the third did not take what the second had restored for a whole model"
        )
        run.wait_event("recovered", 2, "worker.0")
        assert run.events("recovered", "worker.0")[1]["source"] == "chief"
        assert ends(run, "worker.0") == ["SIGKILL"]
        wait_for_steps(run)
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.wait_end() == 75
        (stopped,) = run.events("stopped")
        assert stopped["durable_step"] > trained


@pytest.mark.long
def test_row_59_a_chief_that_dies_while_writing_a_checkpoint_costs_no_step_and_no_step_goes_backwards(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(TASK + SERVER + JOIN + MODEL + monitored(save_checkpoint_secs=1))
    stops = "checkpoint.before_state=1*off->1*stop"  # in its second save
    with launched(tmp_path / "run", *OPTIONS, cwd=tmp_path, standby=None, PROCSV_FAILPOINTS=stops) as run:
        for task in ("chief", "worker.0"):
            run.wait_event("ready", 1, task)
        service = psutil.Process(run.pid("checkpoint"))
        run.wait_for("a save under way", lambda: service.status() == psutil.STATUS_STOPPED)
        trained = memory_step(run)
        run.kill("chief")
        run.wait_event("spawned", 2, "chief")
        run.kill("checkpoint", signal.SIGCONT)
        run.wait_event("recovered", 2, "chief")
        again = run.events("recovered", "chief")[1]
        assert (again["source"], again["lost_steps"]) == ("alive", 0)
        assert again["step"] >= trained
        wait_for_memory(run, again["step"])
        saved = len(run.events("checkpoint_durable"))
        run.wait_event("checkpoint_durable", saved + 1)
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.wait_end() == 75
        steps = [entry["step"] for entry in run.events("checkpoint_durable")]
        assert steps == sorted(steps), "none is of an earlier step than the one before"
        assert ends(run, "ps.0") in ([], [None])
