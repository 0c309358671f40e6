"""Start small programs as real processes and wait for what they print, never for time."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 300.0


class Program:
    """A Python program that prints its progress, one line an event."""

    def __init__(self, source: str, *args: object, failpoints: str = "", pass_fds: tuple[int, ...] = ()) -> None:
        self.said: list[str] = []
        self._rest = b""
        self._process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(source), *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "PROCSV_FAILPOINTS": failpoints},
            pass_fds=pass_fds,
        )
        self.pid = self._process.pid

    def wait_said(self, word: str, times: int = 1) -> str:
        """Wait for the n-th line that begins with `word`. Return the rest of it."""
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + DEADLINE_S
        while len(found := [line for line in self.said if line.split(" ")[0] == word]) < times:
            left_s = deadline_s - time.monotonic()
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, left_s))
            assert ready, f"it never said {word!r}, but {self.said}"
            data = os.read(self._process.stdout.fileno(), 65536)
            assert data, f"it ended without saying {word!r}; it said {self.said}"
            *lines, self._rest = (self._rest + data).split(b"\n")
            self.said += [line.decode() for line in lines]
        return found[times - 1].partition(" ")[2]

    def tell(self, line: str = "") -> None:
        """Write one line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Send SIGKILL and wait until it is gone."""
        self._process.kill()
        assert self.wait() == -signal.SIGKILL

    def wait(self) -> int:
        """Return its exit code as subprocess does."""
        return self._process.wait(DEADLINE_S)

    def close(self) -> None:
        """End it, whatever it is doing."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(DEADLINE_S)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@contextlib.contextmanager
def running(source: str, *args: object, failpoints: str = "", pass_fds: tuple[int, ...] = ()) -> Iterator[Program]:
    """Run a program for the length of a block."""
    program = Program(source, *args, failpoints=failpoints, pass_fds=pass_fds)
    try:
        yield program
    finally:
        program.close()


def until(what: Callable[[], object], turn: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Call `turn`, which waits for news, until `what` is true."""
    end_s = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < end_s, "waited in vain"
        turn()


def freeze(pid: int) -> None:
    """Send SIGSTOP, and wait until no thread runs any more: a rename under way when it comes still happens."""
    os.kill(pid, signal.SIGSTOP)
    while any(
        (task / "stat").read_bytes().rpartition(b") ")[2][:1] not in b"TtZX"
        for task in Path(f"/proc/{pid}/task").iterdir()
    ):
        time.sleep(0.001)


def ignores(pid: int, number: signal.Signals) -> bool:
    """Return whether the process ignores that signal, which a service does once it has begun to serve."""
    found = re.search(r"^SigIgn:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)
