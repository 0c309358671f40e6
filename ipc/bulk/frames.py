"""Frames of the channel on which snapshots travel.  Pure; not messages.py: no envelope, no repetition, no acknowledgement.

receiver -> sender   token, [offset, size]       asks for those bytes; of size 0: has all, or wants no more
sender -> receiver   [offset, size], bytes       they are
sender -> receiver   "gone"                      there is no such offer (any more)
"""

from __future__ import annotations

import struct

from procsv.ipc.bulk.transfer import BYTES_MAX, PIECE_BYTES, Piece

TOKEN_BYTES = 16
GONE = b"gone"
_RANGE = struct.Struct("!QI")
END = Piece(0, 0)


def request(token: bytes, piece: Piece) -> list[bytes]:
    return [token, _RANGE.pack(piece.offset, piece.size)]


def read_request(frames: list[bytes]) -> tuple[bytes, Piece] | None:
    """The token, and what is asked for; None if it is no request."""
    if len(frames) != 2 or len(frames[0]) != TOKEN_BYTES or len(frames[1]) != _RANGE.size:
        return None
    piece = Piece(*_RANGE.unpack(frames[1]))
    return (frames[0], piece) if piece.size <= PIECE_BYTES and piece.offset <= BYTES_MAX else None


def part(offset: int, data: bytes) -> list[bytes]:
    return [_RANGE.pack(offset, len(data)), data]


def read_part(frames: list[bytes]) -> tuple[int, bytes] | None:
    """The offset and the bytes; None if it is no part."""
    if len(frames) != 2 or len(frames[0]) != _RANGE.size:
        return None
    offset, size = _RANGE.unpack(frames[0])
    return (offset, frames[1]) if len(frames[1]) == size else None
