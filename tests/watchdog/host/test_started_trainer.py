"""A trainer starts with the environment, files and options that the program is promised."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.launched import launched

pytestmark = pytest.mark.fault

# Prints what it finds and how it was started.
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
    "marked": began.get("PROCSV_TREE"), "ours": ours,
    "files": sorted(passed_on()), "leads": os.getsid(0) == os.getpid(),
    "stdin": os.read(0, 1).decode(), "given": os.environ.get("GIVEN"), "parent": os.getppid(),
}))
"""


def test_a_trainer_gets_what_it_is_promised_and_a_later_one_gets_the_same(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM + "sys.exit(os.environ['PROCSV_INCARNATION'] == '1')\n")
    logdir = tmp_path / "run"
    with launched(logdir, "--backoff", "0s..0s", "train.py", cwd=tmp_path, GIVEN="this") as run:
        assert run.wait_end() == 0
    first, second = (
        json.loads((logdir / "procsv" / "logs" / f"trainer.{number}.log").read_text().splitlines()[0])
        for number in (1, 2)
    )
    assert first["parent"] == run.process.pid
    assert first["marked"] == first["ours"]["PROCSV_TREE"], "what it leaves is found"
    assert first["ours"]["PROCSV_LOGDIR"] == str(logdir)
    assert (first["ours"]["PROCSV_ROLE"], first["ours"]["PROCSV_INCARNATION"]) == ("trainer", "1")
    assert "PROCSV_START" not in first["ours"]
    assert (first["leads"], first["stdin"], first["given"]) == (True, "", "this")
    for said in (first, second):
        del said["ours"]["PROCSV_INCARNATION"]
    assert first == second


def test_the_program_gets_pythons_options_at_each_start(tmp_path: Path) -> None:
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
