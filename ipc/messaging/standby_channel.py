"""The channel between the watchdog and its standby: a pair of connected sockets that nobody else has.

Used by the watchdog and by the standby process.  One packet is one message; a promotion brings three open files along:
the new trainer's log, the writer's lock and the logdir's.  End-of-file: the other side is dead.
Not ZeroMQ: that passes no files, and a standby is to sleep in one system call, without a thread.
"""

from __future__ import annotations

import os
import socket

import msgspec

from procsv.ipc.messaging.standby_messages import Word

PACKET_BYTES_MAX = 2**14  # two paths, at most
FILES_MAX = 3


_decoder: msgspec.msgpack.Decoder[Word] = msgspec.msgpack.Decoder(Word)


class StandbyChannel:
    """One end.  Packets are whole or not there; sending never blocks, since at most two are ever under way."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @staticmethod
    def pair() -> tuple[StandbyChannel, StandbyChannel]:
        """Both ends; neither is inherited by anybody who is not given it."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return StandbyChannel(one), StandbyChannel(other)

    @staticmethod
    def inherited(fd: int) -> StandbyChannel:
        return StandbyChannel(socket.socket(fileno=fd))

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    def send(self, message: Word, files: tuple[int, ...] = ()) -> None:
        """OSError if the other side is dead."""
        socket.send_fds(self._socket, [msgspec.msgpack.encode(message)], list(files), socket.MSG_DONTWAIT)

    def receive(self) -> Word | None:
        """What has come, without waiting; None if nothing has.  EOFError if nothing more will."""
        try:
            data = self._socket.recv(PACKET_BYTES_MAX, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except ConnectionError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        return _decoder.decode(data)

    def wait(self) -> tuple[Word | None, list[int]]:
        """Sleeps until something comes; with the files that came along, which children do not inherit.

        No message: the other side is dead.
        """
        data, files, _, _ = socket.recv_fds(self._socket, PACKET_BYTES_MAX, FILES_MAX)
        for fd in files:
            os.set_inheritable(fd, False)
        return (_decoder.decode(data) if data else None), files

    def close(self) -> None:
        self._socket.close()
