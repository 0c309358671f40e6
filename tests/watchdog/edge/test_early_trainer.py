"""The interpreter that is started before the watchdog: it becomes the first trainer, and nobody misses it if it cannot."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from procsv.base.identity import TRAINER, WATCHDOG
from procsv.base.system.processes import Adopted, Child
from procsv.ipc.messaging.early_trainer import EarlyTrainer, start_early
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.start import Start
from tests.support.launched import launched

pytestmark = pytest.mark.fault

# Says what it finds, and as what it was started.
PROGRAM = """
import json, os, sys
def read(path):
    with open(path, "rb") as file:
        return dict(entry.decode().split("=", 1) for entry in file.read().split(b"\\0") if b"=" in entry)
def passed_on():
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and os.get_inheritable(int(name)):
                yield os.readlink(f"/proc/self/fd/{name}").partition(":")[0]
        except OSError:
            pass  # closed meanwhile
began = read("/proc/self/environ")
ours = {name: value for name, value in os.environ.items() if name.startswith("PROCSV_")}
print(json.dumps({
    "early": began.get("PROCSV_START", "").startswith("early:"), "marked": began.get("PROCSV_TREE"), "ours": ours,
    "files": sorted(passed_on()), "leads": os.getsid(0) == os.getpid(),
    "stdin": os.read(0, 1).decode(), "given": os.environ.get("GIVEN"), "parent": os.getppid(),
}))
"""


@pytest.fixture
def begun(tmp_path: Path) -> Start:
    """A watchdog's start, whose first trainer's interpreter is on its way."""
    (tmp_path / "train.py").write_text("")
    start = Start(
        task=WATCHDOG, run="r", incarnation=1, logdir=str(tmp_path), run_dir=str(tmp_path / "run"), shm_dir=str(tmp_path),
        target=str(tmp_path / "train.py"), settings=LaunchSettings(standby="off"),
    )  # fmt: skip
    found = start_early(start, os.environ)
    assert found.early_pid
    return found


def told(start: Start) -> Start:
    return Start(
        task=TRAINER, run=start.run, incarnation=1, logdir=start.logdir, run_dir=start.run_dir, shm_dir=start.shm_dir,
        target=start.target, settings=start.settings,
    )  # fmt: skip


def test_the_first_trainer_is_one_and_finds_what_it_would_find_otherwise(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    logdir = tmp_path / "run"
    with launched(logdir, "train.py", cwd=tmp_path, template=False, GIVEN="this") as run:
        assert run.wait_end() == 0
    said = json.loads((logdir / "procsv" / "logs" / "trainer.1.log").read_text())
    assert said["early"]
    assert said["parent"] == run.process.pid
    assert said["marked"] == said["ours"]["PROCSV_TREE"], "what it leaves is found, whenever it was started"
    assert said["ours"]["PROCSV_LOGDIR"] == str(logdir)
    assert (said["ours"]["PROCSV_ROLE"], said["ours"]["PROCSV_INCARNATION"]) == ("trainer", "1")
    assert "PROCSV_START" not in said["ours"]
    assert (said["leads"], said["stdin"], said["given"]) == (True, "", "this")


def test_a_later_trainer_is_an_interpreter_of_the_watchdogs_and_finds_the_same(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM + "sys.exit(os.environ['PROCSV_INCARNATION'] == '1')\n")
    with launched(
        tmp_path / "run", "--backoff", "0s..0s", "train.py", cwd=tmp_path, template=False, GIVEN="this"
    ) as run:
        assert run.wait_end() == 0
    first, second = (
        json.loads((run.logdir / "procsv" / "logs" / f"trainer.{number}.log").read_text().splitlines()[0])
        for number in (1, 2)
    )
    assert (first.pop("early"), second.pop("early")) == (True, False)
    for said in (first, second):
        del said["ours"]["PROCSV_INCARNATION"]
    assert first == second


def test_the_program_has_the_options_that_python_was_given_at_each_start(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys, faulthandler\n"
        "print(sys.flags.optimize, sys._xoptions, sys.warnoptions, faulthandler.is_enabled(), flush=True)\n"
        "os.environ['PROCSV_INCARNATION'] == '1' and os.kill(os.getpid(), 9)\n"
    )
    options = ("-O", "-X", "faulthandler", "-W", "ignore::DeprecationWarning")
    launcher = (
        sys.executable,
        *options,
        "-m",
        "procsv",
        "launch",
        "--backoff",
        "0s..0s",
        "--standby",
        "off",
        "--logdir",
    )
    with launched(tmp_path / "run", "train.py", cwd=tmp_path, launcher=launcher) as run:
        assert run.wait_end() == 0
    logs = [(tmp_path / "run" / "procsv" / "logs" / f"trainer.{number}.log").read_text() for number in (1, 2)]
    assert [log.splitlines()[0] for log in logs] == ["1 {'faulthandler': True} ['ignore::DeprecationWarning'] True"] * 2


def test_one_that_has_died_is_no_trainer_and_leaves_nothing(tmp_path: Path, begun: Start) -> None:
    early = EarlyTrainer(begun.early_pid, begun.early_fd)
    os.kill(begun.early_pid, signal.SIGKILL)
    os.waitid(os.P_PID, begun.early_pid, os.WEXITED | os.WNOWAIT)
    with (tmp_path / "log").open("wb") as log:
        assert not early.take(told(begun), os.environ, log.fileno(), [])
    early.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(begun.early_pid, 0)


def test_one_that_nobody_needs_is_ended(begun: Start) -> None:
    EarlyTrainer(begun.early_pid, begun.early_fd).close()
    with pytest.raises(ChildProcessError):
        os.waitpid(begun.early_pid, 0)


def test_one_whose_line_is_cut_ends_by_itself(begun: Start) -> None:
    os.close(begun.early_fd)
    assert Child(Adopted(begun.early_pid))._process.wait() == 0


def test_one_that_was_taken_is_not_ended_with_the_line(tmp_path: Path, begun: Start) -> None:
    early = EarlyTrainer(begun.early_pid, begun.early_fd)
    lifeline = os.pipe()
    with (tmp_path / "log").open("wb") as log:
        assert early.take(told(begun), os.environ, log.fileno(), [])
    early.close()
    _, status = os.waitpid(begun.early_pid, 0)
    for fd in lifeline:
        os.close(fd)
    assert os.waitstatus_to_exitcode(status) != -signal.SIGKILL
