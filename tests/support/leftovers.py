"""What a test has left behind: processes, run directories, shared memory, temporary files.  Looks at this test's own names only.

Called by tests/conftest.py after every test.  Several suites may run on one machine at a time, so whatever cannot be
traced to this test is left alone: processes are found as our children or by their XDG_RUNTIME_DIR, which is the
test's own, snapshot directories by the id of a directory under the test's tmp_path, and temporary files in its TMPDIR.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import psutil

from procsv.base.run.cleanup import OWNER
from procsv.base.run.paths import SHM_ROOT, find_paths

GONE_WITHIN_S = 30.0  # what is ending when the test ends may take so long
LOOK_S = 0.02
# What others' libraries make, and leave when their process is killed: code that AutoGraph has written, and what Python has made of
# it; sockets of multiprocessing.
OTHERS_FILES = ("__autograph_generated_file*", "__pycache__", "pymp-*")
HELPERS = (  # they live as long as this interpreter
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
)


def is_helper(process: psutil.Process) -> bool:
    """Whether it is of this interpreter, and of no test."""
    try:
        return any(helper in " ".join(process.cmdline()) for helper in HELPERS)
    except psutil.Error:
        return False


def _pids() -> set[int]:
    """Of all processes that there are."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208  after each of thousands of tests


def _parent(pid: int) -> int:
    """0 if it has gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return 0


def _wait_for_children(pids: set[int]) -> None:
    """For those that are ours, and have been killed: the zombie of one would be found by the next test."""
    for started in [one for one in gc.get_objects() if issubclass(type(one), subprocess.Popen) and one.pid in pids]:
        started.wait()


class Leftovers:
    """One test's names: what was there before it, its directories for runs and for temporary files, and its tmp_path."""

    def __init__(self, runtime: Path, temporary: Path, base: Path) -> None:
        self._runtime, self._temporary, self._base = runtime, temporary, base
        self._root = os.getpid()  # asked now: a test may replace what tells who we are
        self._before = _pids()

    def found(self) -> list[str]:
        """What is left, each said in words; empty if all is gone within GONE_WITHIN_S."""
        pause, until_s = threading.Event(), time.monotonic() + GONE_WITHIN_S
        while (left := self.look()) and time.monotonic() < until_s:
            pause.wait(LOOK_S)
        return left

    def remove(self) -> None:
        """Ends and removes what is left, so that one bad test stays one."""
        until_s = time.monotonic() + GONE_WITHIN_S
        while (left := self._processes()) and time.monotonic() < until_s:  # again: they start others
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            _wait_for_children({process.pid for process in left})
            psutil.wait_procs(left, LOOK_S)
        for path in (*self._directories(), *self._files()):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def look(self) -> list[str]:
        """What there is of it now."""
        left = [f"process {self._describe(process)}" for process in self._processes()]
        directories = self._directories()
        for path in directories:
            with contextlib.suppress(FileNotFoundError):  # it is just being removed
                left.append(f"{path} with {sorted(p.name for p in path.iterdir())}")
        return left + [str(path) for path in self._files() if path not in directories]

    def _files(self) -> list[Path]:
        """The temporary ones."""
        return [path for path in self._temporary.iterdir() if not any(map(path.match, OTHERS_FILES))]

    def _processes(self) -> set[psutil.Process]:
        """Only what has begun since is looked at; the system gives a pid again after tens of thousands of others."""
        found = set()
        for pid in _pids() - self._before:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if self._is_stray(pid) or (self._descends(pid) and not is_helper(process)):
                    found.add(process)
        return found

    def _descends(self, pid: int) -> bool:
        while pid not in (0, self._root):
            pid = _parent(pid)
        return bool(pid)

    def _is_stray(self, pid: int) -> bool:
        """Whether it has this test's runtime directory in its environment, whoever its parent is."""
        mark = b"XDG_RUNTIME_DIR=" + os.fsencode(self._runtime) + b"\0"
        with contextlib.suppress(OSError):
            return mark in Path(f"/proc/{pid}/environ").read_bytes()
        return False

    def _directories(self) -> list[Path]:
        logdirs = [Path(directory) for directory, _, _ in os.walk(self._base)]
        ids = {find_paths(logdir).id for logdir in logdirs}
        ids |= {path.parent.name.rpartition("-")[2] for path in self._owned()}  # the logdir may be gone
        names = [f"procsv-{os.getuid()}-{one}*" for one in ids]  # and what machines keep of others
        shm = [path for name in names for path in SHM_ROOT.glob(name)]
        run_dirs = [find_paths(logdir, outlives_login=True).run_dir for logdir in logdirs]
        return [*self._runtime.glob("procsv-*"), *(path for path in (*shm, *run_dirs) if path.exists())]

    def _owned(self) -> list[Path]:
        """The files in shared memory that say that a directory belongs to a logdir of this test."""
        base = os.fsencode(f'"home":"{self._base}/')
        found = []
        for path in SHM_ROOT.glob(f"procsv-{os.getuid()}-*/{OWNER}"):
            with contextlib.suppress(OSError):
                if base in path.read_bytes():
                    found.append(path)
        return found

    @staticmethod
    def _describe(process: psutil.Process) -> str:
        try:
            return f"{process.pid} ({process.status()}): {' '.join(process.cmdline())}"
        except psutil.Error:
            return f"{process.pid}"
