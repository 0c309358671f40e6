"""Channel between a program and the watchdog that it has started itself: a pair of connected sockets.

Used by a Supervisor without `procsv launch` and by its watchdog, for the run's beginning and end; all else goes the way
of any trainer's messages.  End-of-file: the other side is gone.  One message is one line of JSON.
"""

from __future__ import annotations

import json
import os
import socket

import msgspec

from procsv.ipc.messaging.start import Start, receive_files, send_files


class Observe(msgspec.Struct, frozen=True, tag=True):
    """Program -> watchdog: this is your run.  Answered by Opened or Refused."""

    start: Start


class Opened(msgspec.Struct, frozen=True, tag=True):
    """Watchdog -> program: the logdir is ours, the services are on their way, and you are trainer `incarnation`.

    Brings the logdir's lock.
    """

    incarnation: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Watchdog -> program: the run cannot be had; the text says why, and what to change."""

    text: str
    exit_code: int
    is_locked: bool


class ProgramLeft(msgspec.Struct, frozen=True, tag=True):
    """Program -> watchdog: the session is over, and so is the run.  Answered by end-of-file, when all is on disk.

    `code`: what the program would end with as far as this session is concerned; its last words are in their file.
    """

    code: int


Word = Observe | Opened | Refused | ProgramLeft


class ObserverChannel:
    """One end.  Sending blocks only for a first message that is longer than a socket's buffer."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._read = b""
        self._files: list[int] = []

    @staticmethod
    def pair() -> tuple[ObserverChannel, ObserverChannel]:
        """Both ends; neither is inherited by anybody who is not given it."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return ObserverChannel(one), ObserverChannel(other)

    @staticmethod
    def inherited(fd: int) -> ObserverChannel:
        os.set_inheritable(fd, False)
        return ObserverChannel(socket.socket(fileno=fd))

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    def send(self, message: Word, files: tuple[int, ...] = ()) -> None:
        """OSError if the other side is gone."""
        # Not msgspec's encoder: arguments that are not UTF-8 must arrive as they were given.
        data = json.dumps(msgspec.to_builtins(message)).encode() + b"\n"
        send_files(self._socket, data, files)

    def receive(self, waits: bool = False) -> Word | None:
        """The next message; None if none is there yet.  EOFError if nothing more will come."""
        while b"\n" not in self._read:
            try:
                data, files = receive_files(self._socket, 0 if waits else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            except ConnectionError as error:
                raise EOFError from error
            if not data:
                raise EOFError
            self._read += data
            self._files += files
        line, _, self._read = self._read.partition(b"\n")
        return msgspec.convert(json.loads(line), Word)  # type: ignore[no-any-return]

    def take_file(self) -> int:
        """The open file that came along; children do not inherit it.  -1 if none did."""
        return self._files.pop() if self._files else -1

    def close(self) -> None:
        self._socket.close()
        while self._files:
            os.close(self._files.pop())
