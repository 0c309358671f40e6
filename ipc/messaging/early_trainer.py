"""An interpreter for the first trainer, started before the watchdog, so that both get ready at the same time.

`procsv launch` starts it and becomes the watchdog, whose child it then is.  It imports the bootstrap and waits on a line; what
it is told makes it the run's first trainer, or its first standby: start, environment, log and open files, as if it were started
only then.  Nobody depends on it: where it is not there, or dies, the watchdog starts an interpreter as it always does.  It ends
when its line ends.  Killed while it is told: a trainer that has died, like any.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from procsv.base.identity import TRAINER
from procsv.ipc.messaging.start import EARLY, VARIABLE, Start, send_files


def start_early(start: Start, environment: Mapping[str, str]) -> Start:
    """`start` of the watchdog that this process is about to become, with the trainer's interpreter on its way.

    Unchanged if the system starts none.
    """
    ours, theirs = socket.socketpair()
    trainer = msgspec.structs.replace(start, task=TRAINER)
    with theirs:
        try:
            process = subprocess.Popen(
                trainer.argv(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**environment, VARIABLE: f"{EARLY}{theirs.fileno()}"},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError:
            ours.close()
            return start
    process.returncode = 0  # it is the watchdog's, which waits for its end
    return msgspec.structs.replace(start, early_pid=process.pid, early_fd=ours.detach())


class EarlyTrainer:
    """The watchdog's side: an interpreter that waits to be a trainer or a standby."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid, self._line = pid, socket.socket(fileno=fd)
        os.set_inheritable(fd, False)

    def take(self, start: Start, environment: Mapping[str, str], log: int, files: Sequence[int]) -> bool:
        """Makes it the process that `start` describes; `files`: what it is to inherit.  False if it is dead."""
        told: dict[str, Any] = {"start": start.text(), "environment": dict(environment), "files": list(files)}
        told["environment"].pop(VARIABLE, None)
        try:
            with self._line:
                send_files(self._line, json.dumps(told).encode() + b"\n", [log, *files])
        except OSError:
            self.close()
            return False
        self.pid = 0  # a process of the run from now on
        return True

    def close(self) -> None:
        """It is not needed; nothing if it was taken."""
        if not self.pid:
            return
        self._line.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self.pid = 0
