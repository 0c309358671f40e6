"""News of a command that the template has launched.  Used by host.py and client.py."""

from __future__ import annotations

import msgspec


class Launched(msgspec.Struct, frozen=True):
    """It runs, or it has ended with that code, which is negative for a signal."""

    pid: int
    code: int | None = None

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def decode(data: bytes) -> Launched:
        return msgspec.json.decode(data, type=Launched)
