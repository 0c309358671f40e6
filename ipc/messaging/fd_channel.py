"""Exchange typed messages and open files between two processes, over a pair of Unix sockets.

It is used where ZeroMQ is unsuitable.  ZeroMQ passes no files and needs a thread; on this channel a
process can sleep in one system call.  No third process has either end, so end-of-file means that
the other side is gone.  A frame holds the length of the message, the number of its files, and the
message in MessagePack.  The files travel with the first byte.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from procsv.base.encoding import decode_msgpack, encode_msgpack

Message = TypeVar("Message")

MESSAGE_BYTES_MAX = 2**25  # a program's arguments take 6 MiB at most, and more if escaped
FILES_MAX = 8
READ_BYTES = 2**16
HEADER = struct.Struct("<IB")


class FdChannel(Generic[Message]):
    """One end of the channel."""

    def __init__(self, end: socket.socket, decoder: msgspec.msgpack.Decoder[Message]) -> None:
        self._socket, self._decoder = end, decoder
        self._read = bytearray()  # the incomplete frame so far
        self._files: list[int] = []  # and its files

    @staticmethod
    def pair(decoder: msgspec.msgpack.Decoder[Message]) -> tuple[FdChannel[Message], FdChannel[Message]]:
        """Returns both ends.

        A child process inherits an end only if its parent passes that end to it.
        """
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return FdChannel(one, decoder), FdChannel(other, decoder)

    @staticmethod
    def inherited(fd: int, decoder: msgspec.msgpack.Decoder[Message]) -> FdChannel[Message]:
        """Returns the end that this process was given; its own children do not inherit it."""
        os.set_inheritable(fd, False)
        return FdChannel(socket.socket(fileno=fd), decoder)

    @property
    def fd(self) -> int:
        """The descriptor of this end; -1 once it is closed."""
        return self._socket.fileno()

    def send(self, message: Message, files: Sequence[int] = ()) -> None:
        """Sends a message; blocks only if it is longer than the socket's buffer.

        OSError if it is too long, or the other side is gone.
        """
        data = encode_msgpack(message)
        if len(data) > MESSAGE_BYTES_MAX or len(files) > FILES_MAX:
            raise OSError(errno.EMSGSIZE, f"a message of {len(data)} bytes and {len(files)} files")
        frame = HEADER.pack(len(data), len(files)) + data
        sent = socket.send_fds(self._socket, [frame], files)
        # If nothing is left, do not call sendall: it fails if the other side has read everything and closed its end.
        if sent < len(frame):
            self._socket.sendall(frame[sent:])

    def receive(self, waits: bool = False) -> tuple[Message, list[int]] | None:
        """Returns the next message and its files; None if none has arrived.

        `waits`: waits for a message instead of returning None.  Children do not inherit the files.
        EOFError if no more messages will come, or the data is not a message.  OSError if this
        process has no descriptors left.
        """
        flags = socket.MSG_CMSG_CLOEXEC | (0 if waits else socket.MSG_DONTWAIT)
        room = socket.CMSG_LEN(FILES_MAX * array.array("i").itemsize)
        while missing := self._count_missing():
            try:  # socket.recv_fds would ignore the flags
                data, extra, _, _ = self._socket.recvmsg(min(missing, READ_BYTES), room, flags)
            except BlockingIOError:
                return None
            except ConnectionError as error:
                raise EOFError from error
            if not data:
                raise EOFError
            self._read += data
            for _, kind, numbers in extra:
                if kind == socket.SCM_RIGHTS:
                    self._files += array.array("i", numbers)
        _, count = HEADER.unpack_from(self._read)
        if count > len(self._files):
            raise OSError(errno.EMFILE, "no room for the open files of a message")
        try:
            message = decode_msgpack(self._read[HEADER.size :], self._decoder)
        except msgspec.DecodeError as error:
            raise EOFError(str(error)) from error
        files, self._files, self._read = self._files, [], bytearray()
        return message, files

    def _count_missing(self) -> int:
        """Returns how many bytes the header, or the message, still lacks.

        We read no further than that, so later bytes stay in the socket for the next owner of this
        end.
        """
        if len(self._read) < HEADER.size:
            return HEADER.size - len(self._read)
        size, _ = HEADER.unpack_from(self._read)
        if size > MESSAGE_BYTES_MAX:
            raise EOFError(f"a message of {size} bytes")
        return HEADER.size + int(size) - len(self._read)

    def close(self) -> None:
        self._socket.close()
        while self._files:
            os.close(self._files.pop())
