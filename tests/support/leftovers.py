"""Find what a test left behind: processes, run directories, shared memory and temporary files.

tests/conftest.py calls it after every test. Several suites may run on one machine, so it looks only
at what it can trace to this test: our children, processes with this test's XDG_RUNTIME_DIR,
snapshot directories with the id of a directory under the test's tmp_path, and files in the test's
TMPDIR.
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

GONE_WITHIN_S = 30.0  # what is exiting when the test ends may take that long
LOOK_S = 0.02
# Files that libraries leave when their process is killed: AutoGraph's code and its bytecode,
# multiprocessing's sockets.
OTHERS_FILES = ("__autograph_generated_file*", "__pycache__", "pymp-*")
HELPERS = (  # they live as long as this interpreter
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
)


def is_helper(process: psutil.Process) -> bool:
    """Return whether the process belongs to this interpreter rather than to a test."""
    try:
        return any(helper in " ".join(process.cmdline()) for helper in HELPERS)
    except psutil.Error:
        return False


def _pids() -> set[int]:
    """Return the pids of all processes."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208  after each of thousands of tests


def _parent(pid: int) -> int:
    """Return the parent's pid, or 0 if the process has gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return 0


def _wait_for_children(pids: set[int]) -> None:
    """Reap our own killed children: the next test would find their zombies."""
    for started in [one for one in gc.get_objects() if issubclass(type(one), subprocess.Popen) and one.pid in pids]:
        started.wait()


class Leftovers:
    """One test's traces: the processes before it, its runtime and temporary directories, and its tmp_path."""

    def __init__(self, runtime: Path, temporary: Path, base: Path) -> None:
        self._runtime, self._temporary, self._base = runtime, temporary, base
        self._root = os.getpid()  # read now: a test may replace os.getpid
        self._before = _pids()

    def found(self) -> list[str]:
        """Describe what is left after GONE_WITHIN_S. Empty as soon as all is gone."""
        pause, until_s = threading.Event(), time.monotonic() + GONE_WITHIN_S
        while (left := self.look()) and time.monotonic() < until_s:
            pause.wait(LOOK_S)
        return left

    def remove(self) -> None:
        """End and remove what is left, so that one bad test does not spoil the next."""
        until_s = time.monotonic() + GONE_WITHIN_S
        while (left := self._processes()) and time.monotonic() < until_s:  # again: they may start others
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
        """Describe what is there now."""
        left = [f"process {self._describe(process)}" for process in self._processes()]
        directories = self._directories()
        for path in directories:
            with contextlib.suppress(FileNotFoundError):  # removed in the meantime
                left.append(f"{path} with {sorted(p.name for p in path.iterdir())}")
        return left + [str(path) for path in self._files() if path not in directories]

    def _files(self) -> list[Path]:
        """Return the temporary files."""
        return [path for path in self._temporary.iterdir() if not any(map(path.match, OTHERS_FILES))]

    def _processes(self) -> set[psutil.Process]:
        """Return the test's processes. Only new pids count: the system reuses one after tens of thousands."""
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
        """Return whether the process has this test's runtime directory in its environment."""
        mark = b"XDG_RUNTIME_DIR=" + os.fsencode(self._runtime) + b"\0"
        with contextlib.suppress(OSError):
            return mark in Path(f"/proc/{pid}/environ").read_bytes()
        return False

    def _directories(self) -> list[Path]:
        logdirs = [Path(directory) for directory, _, _ in os.walk(self._base)]
        ids = {find_paths(logdir).id for logdir in logdirs}
        ids |= {path.parent.name.rpartition("-")[2] for path in self._owned()}  # the logdir may be gone
        names = [f"procsv-{os.getuid()}-{one}*" for one in ids]  # and the copies that machines keep of others
        shm = [path for name in names for path in SHM_ROOT.glob(name)]
        run_dirs = [find_paths(logdir, outlives_login=True).run_dir for logdir in logdirs]
        return [*self._runtime.glob("procsv-*"), *(path for path in (*shm, *run_dirs) if path.exists())]

    def _owned(self) -> list[Path]:
        """Return the owner files in shared memory that name a logdir of this test."""
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
