"""The tutorials' programs and commands run as written, in the reader's order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from procsv.base.run.saved_step import saved_step
from procsv.cli.directory import find_run
from procsv.cli.status import read_status
from tests.support.launched import NEWS_S_MAX, environment
from tests.support.programs import until

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = [pytest.mark.long, pytest.mark.fault]


def follow(page: str, place: Path) -> str:
    """Run a page's fenced blocks in order. Return the output of the commands."""
    said = ""
    for language, text in re.findall(r"```(python|sh)\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
        if language == "python":
            (name,) = re.findall(r"\A# (\w+\.py)\n", text)
            (place / name).write_text(text)
            continue
        for command in text.splitlines():
            said += run(command, place)
            if "--detach" in command:  # the reader types the next command once there is something to see
                (logdir,) = re.findall(r"--logdir (\S+)", command)
                wait_for_a_step(place / logdir)
    return said


def wait_for_a_step(logdir: Path) -> None:
    run = find_run(str(logdir))
    until(lambda: read_status(run)["step"] > 0, lambda: threading.Event().wait(0.05), NEWS_S_MAX)


def run(command: str, place: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=place,
        env=environment(PATH=path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=NEWS_S_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def weights_in(said: str) -> list[str]:
    return re.findall(r"^weights ([0-9a-f]+)$", said, re.MULTILINE)


def assert_killed_once(runs: Path, names: Sequence[str]) -> None:
    for name in names:
        assert read_status(find_run(str(runs / name)))["restarts"] == 1, name


def test_the_sessions_tutorial_runs_as_written_and_each_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    weights = weights_in(follow("tutorial.md", tmp_path))
    assert len(weights) >= 4
    assert len(set(weights)) == 1
    assert_killed_once(tmp_path / "runs", ["killed"])
    assert [saved_step(tmp_path / "runs" / name) for name in ("plain", "killed", "stopped", "dropped")] == [1000] * 4


def test_the_tensorflow_2_and_keras_tutorial_runs_as_written_and_kills_change_no_weight(tmp_path: Path) -> None:
    of_loops, of_loops_killed, of_fits, of_fits_killed, *_ = weights_in(follow("tutorial-tf2.md", tmp_path))
    assert of_loops == of_loops_killed
    assert of_fits == of_fits_killed
    assert_killed_once(tmp_path / "runs", ["loop-killed", "fit-killed", "plain"])
