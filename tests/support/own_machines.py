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
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from procsv.drill.networks import OwnNetwork, own_networks, why_no_networks

MEMORY = "/dev/shm"
DAY_S = 86_400


def why_not() -> str:
    """Why no machines can be made here; "" if they can."""
    if why := why_no_networks():
        return why
    try:
        with own_machines(1) as (machine,):
            subprocess.run(
                [*machine.launcher, "true"], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL
            )
    except subprocess.CalledProcessError as error:
        return f"machines of their own take namespaces of processes, mounts and clocks: {error.stderr.strip()}"
    return ""


class OwnMachine:
    """One of them, before and while something runs on it."""

    def __init__(self, number: int, network: OwnNetwork) -> None:
        self.name, self.address, self.network = f"m{number}", network.address, network.name
        self.cut, self.mend = network.cut, network.mend
        self._network = network
        self._ahead_s = number * DAY_S  # of this machine's monotonic clock

    @property
    def launcher(self) -> tuple[str, ...]:
        """What runs a command there, in front of it."""
        clock = ("--time", "--monotonic", f"{self._ahead_s}")
        inside = ("unshare", "--pid", "--mount", "--uts", *clock, "--fork", "--kill-child")
        return (*self._network.launcher, *inside, sys.executable, __file__, self.name)

    def send_signal(self, number: signal.Signals) -> None:
        """To all its processes: SIGSTOP freezes it, SIGKILL cuts off its power."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)

    def processes(self) -> Iterator[psutil.Process]:
        network = Path("/run/netns", self.network).stat().st_ino
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if Path(f"/proc/{process.pid}/ns/net").stat().st_ino == network:
                    yield process


@contextlib.contextmanager
def own_machines(count: int) -> Iterator[list[OwnMachine]]:
    """CalledProcessError where they cannot be made."""
    with own_networks(count) as networks:
        made = [OwnMachine(number, network) for number, network in enumerate(networks, 1)]
        try:
            yield made
        finally:
            for machine in made:
                machine.send_signal(signal.SIGKILL)


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
