"""Make machines on this one: each has its own network, processes, host name, memory and monotonic
clock.

A bridge that connects to nothing else joins them, and they see the same filesystem, as the nodes of
a cluster do. They need root, and closing them leaves nothing behind. What is launched `within` a
machine is its first process, and its end ends all others there.
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
    """Return why machines cannot be made here, or "" if they can."""
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
    """One machine, before and while something runs on it."""

    def __init__(self, number: int, network: OwnNetwork) -> None:
        self.name, self.address, self.network = f"m{number}", network.address, network.name
        self.cut, self.mend = network.cut, network.mend
        self._network = network
        self._ahead_s = number * DAY_S  # the offset of this machine's monotonic clock

    @property
    def within(self) -> tuple[str, ...]:
        """The surroundings of a run there (within.py)."""
        return (__file__, "become", self._network.namespace, self.name, str(self._ahead_s))

    def send_signal(self, number: signal.Signals) -> None:
        """Signal all its processes. SIGSTOP freezes the machine, SIGKILL cuts its power."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)

    def stands_still(self) -> bool:
        """Return whether all its processes have stopped after SIGSTOP."""
        return all(process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE) for process in self.processes())

    def processes(self) -> Iterator[psutil.Process]:
        network = Path("/run/netns", self.network).stat().st_ino
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if Path(f"/proc/{process.pid}/ns/net").stat().st_ino == network:
                    yield process


@contextlib.contextmanager
def own_machines(count: int) -> Iterator[list[OwnMachine]]:
    """Make that many machines. Raises CalledProcessError if they cannot be made."""
    with own_networks(count) as networks:
        made = [OwnMachine(number, network) for number, network in enumerate(networks, 1)]
        try:
            yield made
        finally:
            for machine in made:
                machine.send_signal(signal.SIGKILL)


def become(network: str, name: str, ahead_s: str) -> dict[str, str]:
    """Become a machine: returns in its first process. The caller's process waits for that one and
    ends the same way.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(network).open() as namespace:
        _check(libc.setns(namespace.fileno(), CLONE_NEWNET))
    _check(libc.unshare(CLONE_NEWPID | CLONE_NEWTIME))
    Path("/proc/self/timens_offsets").write_text(f"monotonic {ahead_s} 0")  # for processes that start from now on
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
    """Wait for `child`, then exit as it did. Keep none of its files open and ignore signals until then."""
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
