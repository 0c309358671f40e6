"""In a sandbox that forbids pidfd_open a launch says so in one line and starts nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from procsv.base import exit_codes

ROOT = Path(__file__).parents[2]
# A seccomp(2) filter: the system call with this number fails with EPERM; all others are allowed.
FORBIDDING = """
import ctypes, struct, sys
PIDFD_OPEN, EPERM = 434, 1
NO_NEW_PRIVS, SECCOMP, FILTER = 38, 22, 2
program = b"".join(
    struct.pack("=HBBI", *step)
    for step in [(0x20, 0, 0, 0), (0x15, 0, 1, PIDFD_OPEN), (0x06, 0, 0, 0x00050000 | EPERM), (0x06, 0, 0, 0x7FFF0000)]
)
held = ctypes.create_string_buffer(program)
wanted = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(held)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert libc.prctl(SECCOMP, FILTER, wanted, 0, 0) == 0
from procsv.cli.main import main
sys.exit(main())
"""


def test_a_launch_that_cannot_watch_processes_names_what_it_needs_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('begun', flush=True)\n")
    done = subprocess.run(
        [sys.executable, "-c", FORBIDDING, "launch", "--logdir", "run", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == exit_codes.GAVE_UP, done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert "pidfd_open" in done.stderr
    assert not (tmp_path / "run").exists()
