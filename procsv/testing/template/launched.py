"""Messages of the template: that it is ready, and news of a command that it has launched.  Used by host.py and client.py."""

from __future__ import annotations

import msgspec

ANOTHER = b"another"  # asks for a fork of the template, which serves the line that comes along


class Ready(msgspec.Struct, frozen=True):
    """It has imported, and launches; `no_fork`: or why it does not."""

    pid: int
    no_fork: str = ""

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def decode(data: bytes) -> Ready:
        return msgspec.json.decode(data, type=Ready)


class Launched(msgspec.Struct, frozen=True):
    """It runs, or it has ended with that code, which is negative for a signal."""

    pid: int
    code: int | None = None

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def decode(data: bytes) -> Launched:
        return msgspec.json.decode(data, type=Launched)
