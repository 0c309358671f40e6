"""The test session's side of its template: starts it when the first run is launched, and launches runs by it.

Used by procsv/testing/run.py.  A run whose environment decides how an interpreter starts is launched without.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from procsv.base.system.template import PACKET_BYTES_MAX, ForkRequest, is_alike
from procsv.testing.template.launched import ANOTHER, Launched, Ready

PADDING = "x" * 2000  # what a fork is shown as in `ps` has room there
ROOM_BYTES = 4000  # and its environment there
READY_S_MAX = 300.0
SAID_BYTES_MAX = 2**20
ANSWER_S_MAX = 60.0


class TemplateProcess:
    """A command that a template has launched, used like subprocess.Popen."""

    def __init__(self, session: SessionTemplate, pid: int) -> None:
        self._session, self.pid = session, pid
        self._pidfd = os.pidfd_open(pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, or None as long as it runs."""
        if self.returncode is None and self._has_ended(0.0):
            self.returncode = self._session.code_of(self.pid)
            os.close(self._pidfd)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, as subprocess gives it; TimeoutExpired after `timeout` seconds."""
        if self.returncode is None and not self._has_ended(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        code = self.poll()
        assert code is not None, "it has ended"
        return code

    def _has_ended(self, timeout: float | None) -> bool:
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(None if timeout is None else max(0, round(timeout * 1000))))

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class SessionTemplate:
    """The template of this test session, or a fork of it, and the line to it."""

    def __init__(
        self,
        line: socket.socket,
        environment: Mapping[str, str],
        errors: IO[bytes],
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        """`errors`: its standard error; `process`: given where it is our child."""
        self._line, self._environment, self._errors, self._process = line, environment, errors, process
        self._codes: dict[int, int] = {}
        self._lock = threading.Lock()
        self._ready: Ready | None = None

    @staticmethod
    def start(environment: Mapping[str, str], imports: Sequence[str] = ()) -> SessionTemplate:
        """Starts one, which imports while others go on.  `imports`: the names of what it imports besides TensorFlow."""
        # Not what marks a process as this test's.
        own = {k: v for k, v in environment.items() if not k.startswith("PROCSV_") and k != "XDG_RUNTIME_DIR"}
        # What TensorFlow says as it is imported belongs to no test; it is read where no template comes of it.
        errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the session
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        room = {"PROCSV_ROOM": "x" * (sum(len(k) + len(v) + 2 for k, v in own.items()) + ROOM_BYTES)}
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "procsv.testing.template.host", str(theirs.fileno()), PADDING, *imports],
                env={**own, **room},
                stdin=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[theirs.fileno()],
            )
        return SessionTemplate(line, own, errors, process)

    def for_fork(self) -> SessionTemplate:
        """In a fork of this process, that has launched nothing: a fork of the template, which launches for it alone."""
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._line, contextlib.suppress(OSError):  # it has ended: so it will say
            socket.send_fds(self._line, [ANOTHER], [theirs.fileno()])
        if self._process is not None:
            self._process.returncode = 0  # nobody here is to wait for it: it is the child of whoever has forked us
        return SessionTemplate(line, self._environment, self._errors)

    def ready(self) -> Ready:
        """Waits until it has imported."""
        with self._lock:
            if self._ready is None:
                self._line.settimeout(READY_S_MAX)
                told = self._line.recv(PACKET_BYTES_MAX)
                self._ready = Ready.decode(told) if told else Ready(0, f"it has ended: {self._said()}")
                self._line.settimeout(ANSWER_S_MAX)
            return self._ready

    def _said(self) -> str:
        """The last line of its standard error."""
        lines = os.pread(self._errors.fileno(), SAID_BYTES_MAX, 0).decode(errors="replace").splitlines()
        return lines[-1] if lines else "and has said nothing"

    @property
    def pid(self) -> int:
        """Of the parent of what it launches; 0 if nobody has waited for it yet."""
        return self._ready.pid if self._ready is not None else 0

    def launch(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path | None,
        output: IO[str],
        errors: IO[str] | None = None,
        *,
        attaches: bool = True,
        within: Sequence[str] = (),
    ) -> TemplateProcess | None:
        """Starts a command; None if a fork would not be what a fresh interpreter is.

        `errors`: None for `output`.  `attaches`: it has a template of its own beside it.  `within`: what surrounds both (within.py).
        """
        if self.ready().no_fork or not is_alike(environment, self._environment):
            return None
        asked = ForkRequest([*argv], {**environment}, str(cwd or Path.cwd()), [0, 1, 2], attaches, "", [*within])
        with self._lock, Path(os.devnull).open() as nothing:
            socket.send_fds(
                self._line, [asked.encode()], [nothing.fileno(), output.fileno(), (errors or output).fileno()]
            )
            while (told := Launched.decode(self._line.recv(PACKET_BYTES_MAX))).code is not None:
                self._codes[told.pid] = told.code
            return TemplateProcess(self, told.pid)

    def code_of(self, pid: int) -> int:
        """The exit code of a command that has ended."""
        with self._lock:
            until_s = time.monotonic() + ANSWER_S_MAX
            while pid not in self._codes:
                assert time.monotonic() < until_s, f"nobody has told how process {pid} has ended"
                told = Launched.decode(self._line.recv(PACKET_BYTES_MAX))
                assert told.code is not None, "nothing was asked for"
                self._codes[told.pid] = told.code
            self._line.send(str(pid).encode())  # from now on it is no zombie any more
            return self._codes.pop(pid)

    def close(self) -> None:
        """It ends, and is waited for where it is a child."""
        self._line.close()
        self._errors.close()
        if self._process is not None:
            if self._ready is None:  # it may be importing still
                self._process.kill()
            self._process.wait()


class Session:
    """Whether this test session has a template, which is made for the first run that is launched."""

    def __init__(self) -> None:
        self.is_on = False
        self.imports: tuple[str, ...] = ()
        self._template: SessionTemplate | None = None
        self._has_said = False

    def start(self, environment: Mapping[str, str]) -> None:
        """Starts it, before the first run is launched."""
        if self.is_on and self._template is None:
            self._template = SessionTemplate.start(environment, self.imports)

    def enter_fork(self) -> None:
        """In a fork of the session, which has launched nothing: from now on this one has a fork of the template."""
        if self._template is not None:
            self._template = self._template.for_fork()

    @property
    def pid(self) -> int:
        """Of the process whose children are what is launched; 0 if there is none."""
        return self._template.pid if self._template is not None else 0

    def launch(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path | None,
        output: IO[str],
        errors: IO[str] | None = None,
        *,
        attaches: bool = True,
        within: Sequence[str] = (),
    ) -> TemplateProcess | None:
        """As SessionTemplate.launch; None without a template."""
        if not self.is_on:
            return None
        if self._template is None:
            self.start(environment)
            assert self._template is not None, "it was started"
        if not self._has_said and (no_fork := self._template.ready().no_fork):
            print(f"procsv: no template for this session: {no_fork}", file=sys.stderr)
        self._has_said = True
        return self._template.launch(argv, environment, cwd, output, errors, attaches=attaches, within=within)

    def close(self) -> None:
        if self._template is not None:
            self._template.close()
            self._template = None


SESSION = Session()
