"""Template: a process beside us that has imported what our children import, and forks where we would start an interpreter.

Attached by whoever starts us for a test (procsv.testing): a child of ours, and a line to it, named in one variable of the
environment.  A fork of it is a child of ours as well, with its own exit status.  It is used only where a fork is what a fresh
interpreter would be: what a process inherits besides files, directory and environment is compared first.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

import msgspec

VARIABLE = "PROCSV_TEMPLATE"  # descriptor:pid
PACKET_BYTES_MAX = 2**17
FILES_MAX = 16
ANSWER_S_MAX = 30.0
PR_SET_CHILD_SUBREAPER = 36
# What decides how an interpreter or a library that it imports starts; with another value of one, a fork would differ.
READ_AT_START = (
    "PYTHON",
    "TF_",
    "TF2_",
    "XLA_",
    "CUDA",
    "KERAS",
    "OMP_",
    "OPENBLAS",
    "MKL",
    "LD_",
    "MALLOC",
    "GLIBC",
    "LANG",
    "LC_",
)
# These are set anew in a fork, which reads them later: the path is made of the first, and TensorFlow asks for the others when a
# program makes its cluster, its server and its first channel.
NOT_READ = frozenset({"PYTHONPATH", "TF_CONFIG", "TF_GRPC_REUSE_PORT", "TF_GRPC_DEFAULT_OPTIONS"})
_INHERITED = {
    "Uid",
    "Gid",
    "Groups",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Umask",
    "SigIgn",
}
_NAMESPACES = ("mnt", "net", "pid", "user", "ipc", "uts")


class ForkRequest(msgspec.Struct, frozen=True):
    """Run `argv`, which begins with the interpreter, in a fork.

    The open files that come along get `numbers`, in their order.  `attaches`: it gets a template of its own beside it, both in
    the network namespace `network` where that is given; what is no module is executed.  `within`: a function that changes what
    surrounds both (procsv/testing/template/within.py).
    """

    argv: list[str]
    environment: dict[str, str]
    cwd: str
    numbers: list[int]
    attaches: bool = False
    network: str = ""
    within: list[str] = []

    def encode(self) -> bytes:
        return json.dumps(msgspec.to_builtins(self)).encode()  # not msgspec's encoder: file names need not be UTF-8

    @staticmethod
    def decode(data: bytes) -> ForkRequest:
        return msgspec.convert(json.loads(data), ForkRequest)


def is_alike(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether interpreters in both environments start alike."""
    return _read_at_start(one) == _read_at_start(other)


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k.startswith(READ_AT_START) and k not in NOT_READ}


def runs_module(argv: Sequence[str]) -> bool:
    """Whether that is our interpreter and a module, which a fork can run."""
    return argv[0] == sys.executable and "-m" in argv[1:3]


class Template:
    """Our end of the line to one, which ends with us."""

    def __init__(self, line: socket.socket, pid: int, environment: Mapping[str, str]) -> None:
        self._line, self._pid, self._environment = line, pid, dict(environment)
        line.settimeout(ANSWER_S_MAX)

    @staticmethod
    def take(environment: MutableMapping[str, str]) -> Template | None:
        """The one that `environment` names, which names it no longer; None if it is not ours, or other than us."""
        number, _, pid = environment.pop(VARIABLE, "").partition(":")
        if not number or not _is_ours(int(pid)):
            return None
        os.set_inheritable(int(number), False)
        line = socket.socket(fileno=int(number))
        if _surroundings("self") != _surroundings(pid):
            line.close()
            return None
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # its forks are to be our children
        return Template(line, int(pid), environment)

    def fork(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        files: Mapping[int, int],
        *,
        attaches: bool = False,
        network: str = "",
    ) -> int:
        """The pid of a child of ours that runs `argv`; 0 if a fork cannot.  `files`: our descriptors, by their number there.

        `attaches`: it has a template of its own; `network`: the file of the namespace in which both are to be.
        """
        if not runs_module(argv) or not is_alike(environment, self._environment):
            return 0
        asked = ForkRequest([*argv], {**environment}, str(Path.cwd()), [*files], attaches, network).encode()
        with contextlib.suppress(OSError, ValueError):
            socket.send_fds(self._line, [asked], [*files.values()])
            return int(self._line.recv(PACKET_BYTES_MAX))
        return 0

    def hand_on(self, environment: MutableMapping[str, str]) -> None:
        """Names it again, for what this process is about to execute in its own place: it is that one's child then."""
        os.set_inheritable(self._line.fileno(), True)
        environment[VARIABLE] = f"{self._line.fileno()}:{self._pid}"


def _is_ours(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1]) == os.getpid()
    return False


def _surroundings(pid: str) -> list[str]:
    """What a process inherits besides its files, directory and environment."""
    proc = Path("/proc", pid)
    lines = (proc / "status").read_text().splitlines()
    found = [line for line in lines if line.partition(":")[0] in _INHERITED]
    found += [str((proc / "ns" / name).readlink()) for name in _NAMESPACES]
    return [*found, (proc / "cgroup").read_text(), (proc / "limits").read_text()]
