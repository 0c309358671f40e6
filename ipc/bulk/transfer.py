"""Decide which pieces of a snapshot to request from another machine, and when.

Pure; fetch.py uses it.  The receiver requests each piece, and at most WINDOW_PIECES are
outstanding, so neither machine holds more of them in memory.  The receiver also notices when the
sender is silent.  TCP loses nothing while a connection lasts, so the receiver repeats its requests
only if no piece arrives for AGAIN_S.
"""

from __future__ import annotations

import struct

import msgspec

PIECE_BYTES = 1 << 20
WINDOW_PIECES = 8  # how many requested pieces may be outstanding
BYTES_MAX = 1 << 42  # the largest credible snapshot
AGAIN_S = 1.5  # after this long without a piece, repeat the outstanding requests
SILENCE_S_MAX = 5.0  # after this long, the sender counts as gone


class TransferPiece(msgspec.Struct, frozen=True):
    """A range of bytes in the slot's file."""

    offset: int
    size: int


class Transfer:
    """One snapshot of `size` bytes.  Times are monotonic seconds."""

    def __init__(self, size: int, now_s: float, bytes_per_s: float | None = None) -> None:
        """`bytes_per_s`: the highest average rate of requests; None: no limit."""
        if not 0 < size <= BYTES_MAX:
            raise ValueError(f"a snapshot of {size} bytes; it can have 1 to {BYTES_MAX}")
        self.size = size
        self.come_bytes = 0
        self._next = 0  # offset of the first byte that was never requested
        self._asked: dict[int, TransferPiece] = {}  # offset -> outstanding piece
        self._heard_s = self._asked_s = self._began_s = now_s
        self._bytes_per_s = bytes_per_s

    @property
    def is_complete(self) -> bool:
        return self.come_bytes == self.size

    def next_pieces(self, now_s: float) -> list[TransferPiece]:
        """Returns the pieces to request now.

        If no piece has arrived for AGAIN_S, these are the outstanding pieces, again.  Otherwise they
        are new ones.  The list is empty if WINDOW_PIECES are outstanding, if the rate allows no more
        yet, or if every piece was requested.
        """
        if self._asked and now_s - max(self._heard_s, self._asked_s) >= AGAIN_S:
            self._asked_s = now_s
            return list(self._asked.values())
        pieces: list[TransferPiece] = []
        while self._next < self._due_bytes(now_s) and len(self._asked) < WINDOW_PIECES:
            piece = TransferPiece(self._next, min(PIECE_BYTES, self.size - self._next))
            self._asked[piece.offset] = piece
            self._next += piece.size
            pieces.append(piece)
        return pieces

    def pause_s(self, now_s: float, most_s: float) -> float:
        """Returns how long to wait for a piece before the next request is due: at most `most_s`."""
        if self._bytes_per_s is None or self._next >= self.size or len(self._asked) >= WINDOW_PIECES:
            return most_s
        return min(most_s, max(0.0, (self._next - self._due_bytes(now_s)) / self._bytes_per_s))

    def _due_bytes(self, now_s: float) -> float:
        if self._bytes_per_s is None:
            return self.size
        return min(self.size, PIECE_BYTES + (now_s - self._began_s) * self._bytes_per_s)

    def came(self, offset: int, size: int, now_s: float) -> bool:
        """Notes that a piece has arrived.

        Returns False if it was not outstanding.  The caller must then drop it.
        """
        piece = self._asked.get(offset)
        if piece is None or piece.size != size:
            return False
        del self._asked[offset]
        self.come_bytes += size
        self._heard_s = now_s
        return True

    def is_silent(self, now_s: float) -> bool:
        """Whether the sender has been silent for too long."""
        return not self.is_complete and now_s - self._heard_s >= SILENCE_S_MAX


# -- frames ------------------------------------------------------------------------------------------------------
# receiver -> sender   token, [offset, size]       requests those bytes; size 0: the transfer is complete or given up
# sender -> receiver   [offset, size], bytes       the requested bytes
# sender -> receiver   "gone"                      there is no such offer (any more)
# Unlike messages (messages.py), frames have no envelope, repetition or acknowledgement.
TOKEN_BYTES = 16
GONE = b"gone"
_RANGE = struct.Struct("!QI")
END = TransferPiece(0, 0)


def request(token: bytes, piece: TransferPiece) -> list[bytes]:
    return [token, _RANGE.pack(piece.offset, piece.size)]


def read_request(frames: list[bytes]) -> tuple[bytes, TransferPiece] | None:
    """Returns the token and the requested piece; None if the frames are not a request."""
    if len(frames) != 2 or len(frames[0]) != TOKEN_BYTES or len(frames[1]) != _RANGE.size:
        return None
    offset, size = _RANGE.unpack(frames[1])
    piece = TransferPiece(offset, size)
    return (frames[0], piece) if piece.size <= PIECE_BYTES and piece.offset <= BYTES_MAX else None


def part(offset: int, data: bytes) -> list[bytes]:
    return [_RANGE.pack(offset, len(data)), data]


def read_part(frames: list[bytes]) -> tuple[int, bytes] | None:
    """Returns the offset and the bytes; None if the frames are not a part."""
    if len(frames) != 2 or len(frames[0]) != _RANGE.size:
        return None
    offset, size = _RANGE.unpack(frames[0])
    return (offset, frames[1]) if len(frames[1]) == size else None
