"""The template of a test session: imports once, and launches what the tests launch, as forks of itself and with forks beside them.

`python -m procsv.testing.template.host DESCRIPTOR PADDING [MODULE…]`, started by client.py.  Over the descriptor it is asked to launch
commands, whose parent it is, and tells how they have ended.  A module is run in a fork; any other command is executed in one.  To what
is launched with a template another fork is attached, a child of that process, which makes its children
(procsv/base/system/template.py).  Where the session itself forks, each of its forks has a
fork of the template, with a line of its own.  It ends with whoever has started it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import socket
import sys
from typing import NamedTuple, NoReturn

import msgspec

from procsv.base.system.template import FILES_MAX, PACKET_BYTES_MAX, VARIABLE, ForkRequest, runs_module
from procsv.testing.template.huge_pages import use_huge_pages
from procsv.testing.template.interpreter import Interpreter, enter_network, keep_only, place_files, retitle
from procsv.testing.template.launched import ANOTHER, Launched, Ready
from procsv.testing.template.within import enter
from procsv.training.process.fork import Threads, fork_away, renew_randomness, settle_memory, why_no_fork

MODULES = (
    "numpy",
    "scipy.linalg",
    "tensorflow",
    "tensorflow.compat.v1",
    "tensorflow.python.training.monitored_session",
    "procsv",
    "procsv.training.process.bootstrap",
    "procsv.training.monitored.sessions",
    "procsv.training.supervisor.supervisor",
    "procsv.training.eager.drop_in",
    "procsv.training.keras.drop_in",
    "procsv.cli.launch",
    "procsv.watchdog.main",
    "procsv.services.checkpoint.process",
    "procsv.services.checkpoint.format.tf_ops_writer",
    "procsv.services.summary.process",
    "procsv.services.runtime",
)


def main() -> None:
    """Imports and serves; in a fork, runs what was asked for, and ends as an interpreter does."""
    threads, line = Threads(), socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    with threads.watching():
        for name in (*MODULES, *sys.argv[3:]):
            with contextlib.suppress(
                ModuleNotFoundError
            ):  # scipy is nobody's duty; of the others the programs will say it
                importlib.import_module(name)
    interpreter, no_fork = Interpreter(), why_no_fork(threads)
    settle_memory()
    use_huge_pages()
    fork = Host(line, no_fork).serve()
    interpreter.run(fork.asked, fork.files)


class Fork(NamedTuple):
    """What a fork is to run, with the files that came along."""

    asked: ForkRequest
    files: list[int]


class Host:
    """Serves whoever holds the other end."""

    def __init__(self, line: socket.socket, no_fork: str) -> None:
        """`no_fork`: why nothing can be launched, or ""."""
        self._no_fork = no_fork
        self._take(line)

    def _take(self, line: socket.socket) -> None:
        self._line = line
        self._launched: dict[int, int] = {}  # pid, by pidfd
        try:
            self._line.send(Ready(os.getpid(), self._no_fork).encode())
        except BrokenPipeError:  # nobody waits for it any longer
            os._exit(0)

    def serve(self) -> Fork:
        """Returns in a fork of a fork alone, with what it is to run."""
        while True:
            poller = select.poll()
            for fd in (self._line.fileno(), *self._launched):
                poller.register(fd, select.POLLIN)
            fd, _ = poller.poll()[0]  # one at a time: after that, this may be a fork with another line
            if fd in self._launched:
                self._tell_end(fd)
            elif (fork := self._answer()) is not None:
                return fork

    def _tell_end(self, pidfd: int) -> None:
        """It stays a zombie, and its pid its own, until somebody has asked how it ended."""
        pid = self._launched.pop(pidfd)
        os.close(pidfd)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None, "it has ended"
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        self._line.send(Launched(pid, code).encode())

    def _answer(self) -> Fork | None:
        data, files, _, _ = socket.recv_fds(self._line, PACKET_BYTES_MAX, FILES_MAX)
        if not data:
            os._exit(0)
        if data.isdigit():
            os.waitpid(int(data), 0)
            return None
        if data == ANOTHER:
            self._divide(*files)
            return None
        pid = os.fork()
        if not pid:
            fork = Fork(_enter(ForkRequest.decode(data)), files)
            if fork.asked.attaches:
                return _launch(fork, self._line)
            self._line.detach()  # closed by the interpreter that this becomes
            renew_randomness()
            return fork
        for fd in files:
            os.close(fd)
        self._launched[os.pidfd_open(pid)] = pid
        self._line.send(Launched(pid).encode())
        return None

    def _divide(self, fd: int) -> None:
        """A fork goes on with another line, and with nothing that was launched here."""
        if os.fork():
            os.close(fd)
            return
        for other in self._launched:
            os.close(other)
        self._line.close()
        line = socket.socket(fileno=fd)
        line.set_inheritable(False)
        self._take(line)


def _enter(asked: ForkRequest) -> ForkRequest:
    """As it is asked for where this process is now: there where it is to run."""
    if asked.network:
        enter_network(asked.network)
    return msgspec.structs.replace(asked, environment=enter(asked.within, asked.environment))


def _launch(fork: Fork, line: socket.socket) -> Fork:
    """Becomes what is asked for, unless that is a module, with which it returns; returns in forks of the template attached to it, too.

    `line`: is none of theirs.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    template = os.fork()
    if template and runs_module(fork.asked.argv):
        for end in (line, theirs):
            end.detach()  # closed by the interpreter that this becomes
        renew_randomness()
        return _with_line(fork, ours.detach(), template)
    if template:
        _execute(fork.asked, fork.files, ours, template)
    for end in (line, ours):
        end.detach()  # closed below, and not once more when nobody knows the object any longer
    keep_only({theirs.fileno()})
    return _serve_launched(theirs)


def _with_line(fork: Fork, line: int, template: int) -> Fork:
    """With its end of the line to its template among its files, and named in its environment."""
    number = max(fork.asked.numbers) + 1
    environment = {**fork.asked.environment, VARIABLE: f"{number}:{template}"}
    asked = msgspec.structs.replace(fork.asked, environment=environment, numbers=[*fork.asked.numbers, number])
    return Fork(asked, [*fork.files, line])


def _execute(asked: ForkRequest, files: list[int], line: socket.socket, template: int) -> NoReturn:
    """Becomes what is launched; its template is a child of this process by now, and stays one."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # as subprocess does
    place_files(files, asked.numbers)
    os.chdir(asked.cwd)
    line.set_inheritable(True)
    os.execvpe(asked.argv[0], asked.argv, {**asked.environment, VARIABLE: f"{line.fileno()}:{template}"})


def _serve_launched(line: socket.socket) -> Fork:
    """Forks for the process that was launched, our parent, until that ends; returns in such a fork."""
    retitle(["python", f"template of {os.getppid()}"])
    while True:
        data, files, _, _ = socket.recv_fds(line, PACKET_BYTES_MAX, FILES_MAX)
        if not data:
            os._exit(0)
        try:
            pid = fork_away(lambda: None)
        except ChildProcessError:
            pid = -1
        if not pid:
            fork = Fork(_enter(ForkRequest.decode(data)), files)
            if fork.asked.attaches:
                return _launch(fork, line)
            line.close()
            return fork
        for fd in files:
            os.close(fd)
        line.send(str(max(pid, 0)).encode())


if __name__ == "__main__":
    main()
