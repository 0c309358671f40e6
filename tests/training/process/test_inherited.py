"""A fork does not tear down what was imported before the fork."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.process.test_fork import said_by

SAYS = """
import atexit, os

class Says:
    def __init__(self, name):
        self.name, self.write = name, os.write

    def __del__(self):
        self.write(1, f"{self.name} is taken down\\n".encode())

says = Says(__name__)
"""
MAIN = """
import atexit, os, sys
from procsv.training.process.fork import settle_memory

import before
settle_memory()
pid = os.fork() if {forks} else 0
if pid:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
import after
says = before.Says("__main__")
atexit.register(lambda: print("at exit", __import__("before").__name__, flush=True))
{last}
"""


def said(tmp_path: Path, forks: bool, last: str = "") -> list[str]:
    for name in ("before", "after"):
        (tmp_path / f"{name}.py").write_text(SAYS)
    lines = said_by(
        "import sys; sys.path.insert(0, sys.argv[1])\n" + MAIN.format(forks=forks, last=last), str(tmp_path)
    )
    assert lines[0] == "at exit before", "what is called at the end finds its modules"
    return sorted(lines[1:])


def test_a_forks_own_modules_are_torn_down_and_the_inherited_ones_are_not(tmp_path: Path) -> None:
    assert said(tmp_path, forks=True) == ["__main__ is taken down", "after is taken down"]


def test_a_process_that_is_not_a_fork_is_torn_down_whole(tmp_path: Path) -> None:
    assert said(tmp_path, forks=False) == ["__main__ is taken down", "after is taken down", "before is taken down"]


@pytest.mark.parametrize(
    "last",
    ["import json; sys.exit(0)", "import types; sys.modules['before'] = types.SimpleNamespace(__name__='before')"],
    ids=["an import late", "another one"],
)
def test_a_program_that_has_changed_its_modules_exits_too(tmp_path: Path, last: str) -> None:
    assert said(tmp_path, forks=True, last=last) == ["__main__ is taken down", "after is taken down"]
