"""Faults of a whole machine, which its own launch has befall itself: it dies, stands still, or is cut off from its network.

Used by injector.py on the coordinator's machine, and by member_loop.py on the others.  A machine is here what this launch has of it:
itself, all processes below it, and their memory.  A cut is of the network namespace that it runs in, and only of one that somebody has
made and named: the network of the machine itself is never touched.  What was taken down says so itself, by the interface's alias, so that
the next launch there mends what one that was killed has left.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from procsv.base.run.cleanup import remove_dirs, remove_run_files, remove_shm_files
from procsv.base.run.paths import RunPaths
from procsv.base.system.processes import Identity, identify

NAMED_NETWORKS = Path("/run/netns")  # where `ip netns` has them
MAY_ADMINISTER = 12  # the bit of CAP_NET_ADMIN (capabilities(7))
LOOPBACK = "lo"
KILLED = 128 + signal.SIGKILL
ALIAS_BYTES_MAX = 255  # (IFALIASZ) of an interface
NO_ALIAS = ("alias", "")


def why_no_cut() -> str:
    """What a cut of this machine's network would need; "" if one can be made."""
    needs = "it takes a network namespace with a name (ip netns exec NAME procsv launch …), root's rights in it, and the tool ip"
    if shutil.which("ip") is None:
        return f"{needs}: there is no ip (iproute2)"
    if not _may_administer():
        return f"{needs}: this launch may not administer its network (CAP_NET_ADMIN)"
    return "" if _has_named_network() else f"{needs}: this launch is in no such namespace"


def _may_administer() -> bool:
    status = Path("/proc/self/status").read_text()
    words = next((line.split() for line in status.splitlines() if line.startswith("CapEff:")), ["", "0"])
    return bool(int(words[1], 16) >> MAY_ADMINISTER & 1)


def _has_named_network() -> bool:
    own = Path("/proc/self/ns/net").stat()
    named = NAMED_NETWORKS.iterdir() if NAMED_NETWORKS.is_dir() else ()
    for path in named:
        with contextlib.suppress(OSError):  # of one that is being removed
            found = path.stat()
            if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino):
                return True
    return False


class _Mark(msgspec.Struct, frozen=True, tag_field="procsv", tag="cut"):
    """The alias of an interface that was taken down, by that process."""

    by: Identity
    routes: list[str]  # to elsewhere, that went with it

    def text(self) -> str:
        text = msgspec.json.encode(self).decode()
        return text if len(text) <= ALIAS_BYTES_MAX else msgspec.structs.replace(self, routes=[]).text()


class OwnMachine:
    """Durations in seconds.  Never raises for what was killed or removed meanwhile."""

    def __init__(self, paths: RunPaths, forget: Callable[[], None] = lambda: None) -> None:
        """`forget`: removes what else there is in the memory of this machine."""
        self._paths, self._forget = paths, forget
        self._cut_until_s: float | None = None
        self._cut: list[tuple[str, list[str]]] = []  # what was taken down: interfaces, and their routes to elsewhere

    def befall(self, action: str, seconds: float, now_s: float) -> None:
        """`action` of a plan: kill, which does not return, stop or cut.  OSError if the network cannot be cut."""
        match action:
            case "kill":
                self.kill()
            case "stop":
                freeze(seconds)
            case "cut":
                self.cut(now_s + seconds)

    def kill(self) -> None:
        """All at once, as when the power goes: nothing is saved or said, and what was in memory is gone."""
        while below := psutil.Process().children(recursive=True):
            _signal_all(below, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, 0)
        self._forget()
        remove_shm_files(self._paths)
        remove_run_files(self._paths)
        remove_dirs(self._paths)
        os.kill(os.getpid(), signal.SIGKILL)
        os._exit(KILLED)  # the first process of a container cannot kill itself (pid_namespaces(7))

    # -- the network ---------------------------------------------------------------------------------------
    def cut(self, until_s: float) -> None:
        """Nothing that is sent arrives, and nobody is told.

        Killed within it: the network stays cut, as of a machine that is gone, until the next launch there (mend_left_cut).
        """
        self._cut_until_s = max(until_s, self._cut_until_s or 0.0)
        for name in _interfaces_up():
            if name != LOOPBACK:
                routes = _ip("route", "show", "default", "dev", name).splitlines()  # they go with the interface
                _ip("link", "set", name, "alias", _Mark(identify(os.getpid()), routes).text())
                # killed here: marked, and up
                _ip("link", "set", name, "down")
                self._cut.append((name, routes))

    def mend(self) -> None:
        """Ends the cut, if there is one.  OSError if that does not go."""
        self._cut_until_s = None
        while self._cut:
            _mend(*self._cut.pop())

    def mend_expired(self, now_s: float) -> None:
        if self._cut_until_s is not None and now_s >= self._cut_until_s:
            self.mend()

    def next_due_s(self) -> float | None:
        return self._cut_until_s


def mend_left_cut(say: Callable[[str], None]) -> None:
    """Ends a cut of this network whose launch was killed.  Called by each launch of a run on several machines, before it looks for the others."""
    if why_no_cut():
        return
    try:
        for link in json.loads(_ip("-json", "link", "show") or "[]"):
            mark = _read_mark(str(link.get("ifalias", "")))
            if mark is not None and not mark.by.is_alive():
                _mend(str(link["ifname"]), mark.routes)
                say(f"{link['ifname']} is up again: a launch that was killed had cut it off, as a fault of its plan")
    except OSError as error:
        say(f"what a fault of a plan has left of this network cannot be mended: {error}")


def _read_mark(alias: str) -> _Mark | None:
    try:
        return msgspec.json.decode(alias, type=_Mark)
    except msgspec.DecodeError:  # none, or somebody else's
        return None


def _mend(name: str, routes: list[str]) -> None:
    _ip("link", "set", name, "up")
    for route in routes:
        _ip("route", "replace", *route.split(), "dev", name)
    _ip("link", "set", name, *NO_ALIAS)


def freeze(seconds: float) -> None:
    """All below this process stands still, and so does this thread, which is what the others hear of.

    Killed in here: what is below stays stopped until the next launch ends it, as what a dead one has left.
    """
    stopped: list[psutil.Process] = []
    while new := [process for process in psutil.Process().children(recursive=True) if process not in stopped]:
        _signal_all(new, signal.SIGSTOP)
        stopped += new  # who has forked meanwhile has done so for the last time
    threading.Event().wait(seconds)
    _signal_all(stopped, signal.SIGCONT)


def _signal_all(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _interfaces_up() -> list[str]:
    found = json.loads(_ip("-json", "link", "show", "up") or "[]")
    return [str(link["ifname"]) for link in found if link]  # {} for each that is down


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
