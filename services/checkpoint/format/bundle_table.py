"""Encode the `.index` file of a V2 checkpoint: the LevelDB-style table of TensorFlow, byte for byte.

The bundle writer calls it with pairs in key order.  Pure: bytes in, bytes out.  Like TensorFlow, it
never compresses or filters.  `bundle_reader.py` reads the same format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import google_crc32c

from procsv.services.checkpoint.format.bundle_reader import FOOTER_BYTES, TABLE_MAGIC, mask

BLOCK_BYTES = 256 * 1024  # a block of this size is closed
RESTART_KEYS = 16  # after this many keys that share prefixes, one key is written in full
_UNCOMPRESSED = b"\0"


def varint(value: int) -> bytes:
    assert value >= 0, "a varint has no sign"
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_table(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns the whole file.  Keys must rise strictly."""
    out = bytearray()
    index, block, last = _Block(1), _Block(RESTART_KEYS), b""
    closed: bytes | None = None  # handle of a closed block; its index key depends on the key that follows
    for key, value in pairs:
        assert key > last or block.is_empty, "keys rise"
        if len(key) + len(value) >= 2 * BLOCK_BYTES and not block.is_empty:
            closed, block = _append(out, block), _Block(RESTART_KEYS)
        if closed is not None:
            index.add_pair(_separator(last, key), closed)
            closed = None
        block.add_pair(key, value)
        last = key
        if block.size >= BLOCK_BYTES:
            closed, block = _append(out, block), _Block(RESTART_KEYS)
    if not block.is_empty:
        closed = _append(out, block)
    meta = _append(out, _Block(RESTART_KEYS))
    if closed is not None:
        index.add_pair(_successor(last), closed)
    handles = meta + _append(out, index)
    out += handles.ljust(FOOTER_BYTES - 8, b"\0") + struct.pack("<Q", TABLE_MAGIC)
    return bytes(out)


class _Block:
    """Keys and values; each key omits the prefix that it shares with the previous key."""

    def __init__(self, restart_keys: int) -> None:
        self._restart_keys = restart_keys
        self._data = bytearray()
        self._restarts = [0]
        self._since_restart = 0
        self._last = b""

    @property
    def is_empty(self) -> bool:
        return not self._data

    @property
    def size(self) -> int:
        return len(self._data) + 4 * len(self._restarts) + 4

    def add_pair(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self._since_restart < self._restart_keys:
            shared = _shared(self._last, key)
        else:
            self._restarts.append(len(self._data))
            self._since_restart = 0
        self._data += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        self._last = key
        self._since_restart += 1

    def finish_block(self) -> bytes:
        return bytes(self._data) + struct.pack(f"<{len(self._restarts) + 1}I", *self._restarts, len(self._restarts))


def _append(out: bytearray, block: _Block) -> bytes:
    """Adds a block with its trailer; returns its handle."""
    data = block.finish_block()
    handle = varint(len(out)) + varint(len(data))
    data += _UNCOMPRESSED
    out += data + struct.pack("<I", mask(google_crc32c.value(data)))
    return handle


def _shared(one: bytes, other: bytes) -> int:
    """Returns the length of the prefix that two keys share."""
    limit = min(len(one), len(other))
    for at in range(limit):
        if one[at] != other[at]:
            return at
    return limit


def _separator(last: bytes, following: bytes) -> bytes:
    """Returns a short key that is at least `last` and less than `following`."""
    at = _shared(last, following)
    if at < min(len(last), len(following)) and last[at] + 1 < following[at]:
        return last[:at] + bytes([last[at] + 1])
    return last


def _successor(last: bytes) -> bytes:
    """Returns a short key that is not less than `last`."""
    for at, byte in enumerate(last):
        if byte != 0xFF:
            return last[:at] + bytes([byte + 1])
    return last
