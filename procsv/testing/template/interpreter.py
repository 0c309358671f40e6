"""An interpreter made by a fork: argv, path, environment, directory and descriptors as of one that was started afresh.

Used by host.py in a fork of the template, which has imported libraries and done nothing else.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import os
import runpy
import sys
import tempfile
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from procsv.base.system.failpoints import read_again
from procsv.base.system.output import leave
from procsv.base.system.template import ForkRequest

HIGH = 200  # above the numbers that anybody asks for
_AREAS = slice(45, 49)  # of /proc/self/stat, counted from the state letter: where arguments and environment lie
STANDARD = frozenset({0, 1, 2})
COMMANDS = frozenset({"procsv", "procsv.cli.main"})
CLONE_NEWNET = 0x40000000


class Interpreter:
    """What this process is before it has served: a fork begins from that."""

    def __init__(self) -> None:
        own = {os.path.abspath(place) for place in _python_path(os.environ)}  # noqa: PTH100
        self._path = [place for place in sys.path if os.path.abspath(place) not in own]  # noqa: PTH100
        sys.path_importer_cache.clear()  # what is in it by then a fork would copy, to throw it away

    def run(self, asked: ForkRequest, files: list[int]) -> None:
        """Runs what is asked for to its end; returns, or raises what ends an interpreter.

        One of our own commands ends the process: to take down all that was imported here takes longer than most of them.
        """
        place_files(files, asked.numbers)
        keep_only(STANDARD.union(asked.numbers))
        os.chdir(asked.cwd)
        os.environ.clear()
        os.environ.update(asked.environment)
        retitle(asked.argv, asked.environment)
        read_again()
        sys.orig_argv = list(asked.argv)
        sys.path[:] = [*map(os.path.abspath, _python_path(asked.environment)), *self._path]
        sys.path_importer_cache.clear()
        importlib.invalidate_caches()
        tempfile.tempdir = None  # TensorFlow has asked for it as it was imported: before TMPDIR was this one's
        place = asked.argv.index("-m")
        if "-P" not in asked.argv[:place]:
            sys.path.insert(0, str(Path.cwd()))
        sys.argv = asked.argv[place + 1 :]
        module = sys.argv[0]
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as ending:
            if module not in COMMANDS or not isinstance(ending.code, int | None):
                raise
            threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as an interpreter does
            leave(ending.code or 0)


def _python_path(environment: Mapping[str, str]) -> list[str]:
    return [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]


def place_files(files: Sequence[int], numbers: Sequence[int]) -> None:
    """Moves `files` to `numbers`, and lets children inherit them."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH) for fd in files]  # one may lie where another belongs
    for fd in files:
        os.close(fd)
    for fd, number in zip(high, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def enter_network(namespace: str) -> None:
    """From now on this process, and what it starts, is in that network.  OSError: it may not, or there is none."""
    with Path(namespace).open() as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def keep_only(wanted: Collection[int]) -> None:
    """Closes all descriptors but the standard ones and `wanted`."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  the listing's own is closed by now
        if int(name) not in STANDARD and int(name) not in wanted:
            try:
                os.close(int(name))
            except OSError:
                continue


def retitle(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Shows others `argv` and `environment` in /proc, as far as the memory reaches in which the system looks for them.

    What marks a process as a run's is found there.  The environment that this process itself uses lies elsewhere by now.
    """
    fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
    argv_start, argv_end, start, end = map(int, fields[_AREAS])
    # A last byte that is no zero tells the kernel that all is one text up to the first zero, as by setproctitle.
    _write(argv_start, argv_end, b" ".join(map(os.fsencode, argv)), end=b"=")
    if environment is not None:
        names = sorted(environment, key=lambda name: (not name.startswith(("PROCSV_", "XDG_")), name))
        words = [f"{name}={environment[name]}" for name in names if name != "PROCSV_START"]
        _write(start, end, b"".join(os.fsencode(word) + b"\0" for word in words), end=b"\0")


def _write(start: int, stop: int, text: bytes, end: bytes) -> None:
    ctypes.memmove(start, text[: stop - start - 2].ljust(stop - start - 1, b"\0") + end, stop - start)
