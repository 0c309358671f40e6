"""A process group is ended even when its killer has no descriptor left to inspect it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Kills without a free descriptor.
CODE = """
import os, resource, subprocess, sys
from procsv.base.system.processes import kill_group
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
lowest = os.open(os.devnull, os.O_RDONLY)
os.close(lowest)
resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
kill_group(child.pid)
print(child.wait())
"""


def test_a_group_is_killed_without_a_free_descriptor() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "-9\n", done.stderr
