"""A process receives its start parameters exactly once, and hides them from its own children."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from procsv.base.errors import ProcsvBug
from procsv.base.identity import STANDBY, SUMMARY, TRAINER, WATCHDOG, TaskId
from procsv.base.run.paths import RunPaths
from procsv.base.service_table import SERVICES
from procsv.base.system.processes import spawn
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.start import VARIABLE, Start, take_start
from tests.support.programs import ROOT

TEXT = st.text(st.characters(exclude_characters="\0"))
STARTS = st.builds(
    Start,
    task=st.sampled_from([WATCHDOG, STANDBY, TaskId("worker", 1), *SERVICES]),
    run=TEXT,
    incarnation=st.integers(0, 2**31),
    logdir=TEXT,
    run_dir=TEXT,
    shm_dir=TEXT,
    target=TEXT,
    args=st.lists(TEXT).map(tuple),
    settings=st.builds(LaunchSettings, hang_limits_s=st.just({"step": 7.5}), plan=TEXT),
)


def a_start(**changes: object) -> Start:
    fields: dict[str, object] = {
        "task": TRAINER, "run": "r", "incarnation": 2, "logdir": "/l", "run_dir": "/r", "shm_dir": "/s",
        "target": "train.py", "args": ("--steps", "3"),
    }  # fmt: skip
    return Start(**(fields | changes))  # type: ignore[arg-type]  # checked by the class


@given(STARTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_start_parameters_are_taken_as_they_were_passed(start: Start) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", start.environment({"HOME": "/h"}))
        assert take_start(start.task) == start
        assert os.environ == {"HOME": "/h"}, "taken out, before anything of the user's can see it"


def test_the_base_environment_is_passed_on_unchanged() -> None:
    base = {"HOME": "/h", VARIABLE: "another's"}
    told = a_start().environment(base)
    assert told["HOME"] == "/h"
    assert told[VARIABLE] != "another's"
    assert base[VARIABLE] == "another's"


def test_the_command_line_shows_role_logdir_and_target() -> None:
    assert a_start().argv() == [sys.executable, "-m", "procsv.training", "trainer", "/l", "train.py", "--steps", "3"]
    assert a_start(task=SUMMARY, target="", args=()).argv() == [sys.executable, "-m", "procsv.services.summary", "/l"]


def test_an_interpreter_without_options_starts_a_trainer_without_options() -> None:
    """In the source tree there is no -P either."""
    program = """
from procsv.base.identity import TRAINER
from procsv.ipc.messaging.start import Start
files = {"logdir": "/l", "run_dir": "/r", "shm_dir": "/s"}
print(Start(task=TRAINER, run="r", incarnation=1, **files, target="train.py", args=()).argv()[1:])
"""
    told = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    said = subprocess.run(
        [sys.executable, "-c", program], env=told, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "['-m', 'procsv.training', 'trainer', '/l', 'train.py']"


def test_the_paths_are_the_runs() -> None:
    assert a_start().paths == RunPaths(Path("/l"), Path("/r"), Path("/s"))


def test_a_process_started_by_hand_says_how_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(SystemExit, match="procsv launch"):
        take_start(SUMMARY)


def test_a_process_started_as_another_role_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, a_start().environment({})[VARIABLE])
    with pytest.raises(ProcsvBug, match="started as trainer"):
        take_start(SUMMARY)


@pytest.mark.fault
def test_as_many_arguments_arrive_as_a_command_line_can_have(tmp_path: Path) -> None:
    source = """
import os, sys
from procsv.base import identity
from procsv.ipc.messaging.start import take_start
args = take_start(identity.TRAINER).args
sys.exit(args != tuple(f"data/{number:06}" for number in range(30_000)) or "PROCSV_START_1" in os.environ)
"""
    args = tuple(f"data/{number:06}" for number in range(30_000))
    env = a_start(args=args).environment({**os.environ, "PYTHONPATH": str(ROOT)})
    child = spawn([sys.executable, "-c", source], env=env, log=tmp_path / "log")
    os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOWAIT)
    assert child.reap().code == 0, (tmp_path / "log").read_text()


@pytest.mark.fault
def test_arguments_arrive_unchanged_whatever_their_bytes(tmp_path: Path) -> None:
    args = ("ä", "\udcff\udc80", 'quo"te', "new\nline", "", "--", "日本")
    source = f"""
import sys
from procsv.base import identity
from procsv.ipc.messaging.start import take_start
sys.exit(take_start(identity.TRAINER).args != {args!r})
"""
    env = a_start(args=args).environment({**os.environ, "PYTHONPATH": str(ROOT)})
    child = spawn([sys.executable, "-c", source], env=env, log=tmp_path / "log")
    os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOWAIT)
    assert child.reap().code == 0, (tmp_path / "log").read_text()
