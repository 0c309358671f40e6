"""Machines of a test's own on this one: each with a network, processes, a host name, memory and a monotonic clock for itself.

They are joined by a bridge, to which nothing else is connected, and see the same filesystem, as nodes of a cluster do.  It takes the
rights of root, and nothing is left of them once they are closed.  What is launched `within` one is its first process, and the end of
that is the end of all.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import psutil

from tests.support.networks import OwnNetwork, own_networks, why_no_networks
from tests.support.within import go_within

MEMORY = "/dev/shm"
DAY_S = 86_400
CLONE_NEWTIME, CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWPID, CLONE_NEWNET = 0x80, 0x20000, 0x4000000, 0x20000000, 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
PR_SET_PDEATHSIG = 1


@functools.cache
def why_not() -> str:
    """Why no machines can be made here; "" if they can."""
    if why := why_no_networks():
        return why
    try:
        with own_machines(1) as (machine,):
            subprocess.run(
                go_within(machine.within, ["true"]),
                check=True,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
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
    def within(self) -> tuple[str, ...]:
        """What surrounds a run there (within.py)."""
        return (__file__, "become", self._network.namespace, self.name, str(self._ahead_s))

    def send_signal(self, number: signal.Signals) -> None:
        """To all its processes: SIGSTOP freezes it, SIGKILL cuts off its power."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)

    def stands_still(self) -> bool:
        """Whether none of its processes does anything any more, after SIGSTOP."""
        return all(process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE) for process in self.processes())

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


def become(network: str, name: str, ahead_s: str) -> dict[str, str]:
    """Returns in the first process of a machine, whose end the one that has called it waits for, and ends alike."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(network).open() as namespace:
        _check(libc.setns(namespace.fileno(), CLONE_NEWNET))
    _check(libc.unshare(CLONE_NEWPID | CLONE_NEWTIME))
    Path("/proc/self/timens_offsets").write_text(f"monotonic {ahead_s} 0")  # for those who begin from now on
    if first := os.fork():
        _end_as(first)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _check(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS))
    _check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    for kind, place in ((b"proc", "/proc"), (b"tmpfs", MEMORY)):
        _check(libc.mount(kind, place.encode(), kind, 0, None))
    socket.sethostname(name)
    runtime = Path(MEMORY, "runtime")
    runtime.mkdir(mode=0o700)
    return {"XDG_RUNTIME_DIR": str(runtime)}


def _end_as(child: int) -> NoReturn:
    """Waits for the end of `child`, of which it keeps no file; only its own is the end of both."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
