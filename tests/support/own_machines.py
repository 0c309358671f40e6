"""Machines of a test's own on this one: each with a network, processes, a host name, memory and a monotonic clock for itself.

They are joined by a bridge, to which nothing else is connected, and see the same filesystem, as nodes of a cluster do.  It takes the
rights of root, and nothing is left of them once they are closed.

    python own_machines.py NAME COMMAND…

is what runs first in each: COMMAND is its first process, and the end of that is the end of all.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

TOOLS = ("ip", "unshare", "nsenter")
MEMORY = "/dev/shm"
DAY_S = 86_400


def why_not() -> str:
    """Why no machines can be made here; "" if they can."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"machines of its own take {', '.join(missing)}: apt-get install iproute2 util-linux"
    try:
        with own_machines(1) as (machine,):
            subprocess.run(
                [*machine.launcher, "true"], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL
            )
    except subprocess.CalledProcessError as error:
        return f"machines of its own take the rights of root, and namespaces: {error.stderr.strip()}"
    return ""


class OwnMachine:
    """One of them, before and while something runs on it."""

    def __init__(self, number: int, prefix: str) -> None:
        """`prefix`: of the names that it has on this machine."""
        self.name, self.address = f"m{number}", f"10.213.0.{number}"
        self.network, self._cable = f"{prefix}-{number}", f"{prefix}.{number}"
        self._ahead_s = number * DAY_S  # of this machine's monotonic clock

    def connect(self, bridge: str) -> None:
        _ip("netns", "add", self.network)
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self.network)
        _ip("link", "set", self._cable, "master", bridge, "up")
        for words in (
            ("addr", "add", f"{self.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", self.network, *words)

    @property
    def launcher(self) -> tuple[str, ...]:
        """What runs a command there, in front of it."""
        network = f"--net=/run/netns/{self.network}"
        clock = ("--time", "--monotonic", f"{self._ahead_s}")
        inside = ("unshare", "--pid", "--mount", "--uts", *clock, "--fork", "--kill-child")
        return ("nsenter", network, *inside, sys.executable, __file__, self.name)

    def cut(self) -> None:
        """Nothing that it sends arrives, and nothing reaches it; nobody is told."""
        _ip("link", "set", self._cable, "down")

    def mend(self) -> None:
        _ip("link", "set", self._cable, "up")

    def send_signal(self, number: signal.Signals) -> None:
        """To all its processes: SIGSTOP freezes it, SIGKILL cuts off its power."""
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)

    def _processes(self) -> Iterator[psutil.Process]:
        network = Path("/run/netns", self.network).stat().st_ino
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if Path(f"/proc/{process.pid}/ns/net").stat().st_ino == network:
                    yield process

    def close(self) -> None:
        self.send_signal(signal.SIGKILL)
        for words in (("link", "del", self._cable), ("netns", "del", self.network)):
            with contextlib.suppress(subprocess.CalledProcessError):  # of one that was not made
                _ip(*words)


@contextlib.contextmanager
def own_machines(count: int) -> Iterator[list[OwnMachine]]:
    """CalledProcessError where they cannot be made."""
    prefix = f"psv{secrets.token_hex(3)}"
    made = [OwnMachine(number, prefix) for number in range(1, count + 1)]
    _ip("link", "add", prefix, "type", "bridge")
    try:
        _ip("link", "set", prefix, "up")
        for machine in made:
            machine.connect(prefix)
        yield made
    finally:
        for machine in made:
            machine.close()
        _ip("link", "del", prefix)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def _be_machine(name: str) -> None:
    """Memory that goes with the machine, its own list of processes, and its name."""
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, place in ((b"proc", "/proc"), (b"tmpfs", MEMORY)):
        if libc.mount(kind, place.encode(), kind, 0, None):
            raise OSError(ctypes.get_errno(), f"cannot mount {place}")
    socket.sethostname(name)
    runtime = Path(MEMORY, "runtime")
    runtime.mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)


if __name__ == "__main__":
    _be_machine(sys.argv[1])
    os.execvp(sys.argv[2], sys.argv[2:])
