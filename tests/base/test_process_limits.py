"""A watchdog of several machines raises its own descriptor limit only, and hides its memory from
other processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.ordinary_rights import LOOKS_AT_OWN
from tests.support.within import go_within

ROOT = Path(__file__).parents[2]
NOBODY = 65534
RAISES = """
import os, resource, sys
from procsv.base.system.processes import give_back_limit, raise_descriptor_limit, spawn
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
raise_descriptor_limit()
own = resource.getrlimit(resource.RLIMIT_NOFILE)
print(own == (min(hard, 65_536), hard), flush=True)
says = "import resource, sys; sys.stdin.read(); print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)"
reader, writer = os.pipe()
child = spawn([sys.executable, "-c", says], env=os.environ, log=None, stdin=reader)
os.close(writer)
os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOWAIT)
print(resource.getrlimit(resource.RLIMIT_NOFILE) == own, flush=True)
give_back_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
"""
HIDES = """
import os, subprocess, sys
from procsv.base.system.processes import forbid_dumps
look = [sys.executable, "-c", f"import os; os.readlink('/proc/{os.getpid()}/cwd')"]
print(subprocess.run(look, stderr=subprocess.DEVNULL).returncode, flush=True)
forbid_dumps()
print(subprocess.run(look, stderr=subprocess.DEVNULL).returncode, flush=True)
"""


def run(source: str) -> list[str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = go_within(LOOKS_AT_OWN, [sys.executable, "-c", source])
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_child_keeps_the_limit_that_the_user_has_set() -> None:
    assert run(RAISES) == ["True", "200", "True", "200"]


def test_no_other_process_of_the_user_can_inspect_one_that_holds_keys() -> None:
    assert run(HIDES) == ["0", "1"]
