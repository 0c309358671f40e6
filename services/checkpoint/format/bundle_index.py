"""Encode the `.index` file of a V2 checkpoint, byte for byte as TensorFlow does.

The file is a LevelDB-style table with an entry for each tensor.  TensorFlow never compresses or
filters it.  The bundle writer calls this module with pairs in key order.  Pure.  `bundle_reader.py`
reads the same format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import google_crc32c
import msgspec

from procsv.services.checkpoint.format.bundle_reader import FOOTER_BYTES, TABLE_MAGIC, mask
from procsv.services.checkpoint.format.protos import BundleEntry, BundleHeader

BLOCK_BYTES = 256 * 1024  # a block of this size is closed
RESTART_KEYS = 16  # after this many keys that share prefixes, one key is written in full
_UNCOMPRESSED = b"\0"
STRING, VARIANT = 7, 21
_FULL = -1  # the length of an extent that covers its whole dimension


def varint(value: int) -> bytes:
    assert value >= 0, "a varint has no sign"
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_table(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns the whole file.  Each key must be greater than the one before it."""
    out = bytearray()
    index, block, last = _Block(1), _Block(RESTART_KEYS), b""
    closed: bytes | None = None  # handle of a closed block, until the next key shows which index key it gets
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
    """Returns a short key that is at least `last`."""
    for at, byte in enumerate(last):
        if byte != 0xFF:
            return last[:at] + bytes([byte + 1])
    return last


class UnsupportedTensor(Exception):
    """A tensor that no V2 checkpoint can hold.  The text says why.

    TensorFlow's own op would refuse it, too.
    """


class Slice(msgspec.Struct, frozen=True):
    """A part of a partitioned tensor: (start, length) in each dimension of the full shape."""

    full_shape: tuple[int, ...]
    extents: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        pairs = zip(self.extents, self.full_shape, strict=True)
        return tuple(size if length == _FULL else length for (_, length), size in pairs)

    @property
    def is_full(self) -> bool:
        return self.shape == self.full_shape


def parse_slice(spec: str) -> Slice:
    """Parses a `shape_and_slice` of SaveV2.

    For example, "7 10 0,3:-" is the first three of seven rows of ten.
    """
    *sizes, extents = spec.split(" ")
    try:
        shape = tuple(int(size) for size in sizes)
        parts = tuple(_parse_extent(extent) for extent in extents.split(":"))
    except ValueError:
        raise UnsupportedTensor(f"slice {spec!r}") from None
    is_inside = len(shape) == len(parts) and all(
        size >= 0 and (length == _FULL or (start >= 0 and length > 0 and start + length <= size))
        for (start, length), size in zip(parts, shape, strict=False)
    )
    if not is_inside:
        raise UnsupportedTensor(f"slice {spec!r}")
    return Slice(shape, parts)


def _parse_extent(text: str) -> tuple[int, int]:
    if text == "-":
        return 0, _FULL
    start, length = text.split(",")
    return int(start), int(length)


def slice_key(key: bytes, piece: Slice) -> bytes:
    """Returns the key of a slice's own entry.

    Such a key sorts before every tensor name, and equals none.
    """
    escaped = b"".join({0: b"\x00\xff", 255: b"\xff\x00"}.get(byte, bytes([byte])) for byte in key)
    out = _ordered(0) + escaped + b"\x00\x01" + _ordered(len(piece.extents))
    return out + b"".join(_ordered_signed(start) + _ordered_signed(length) for start, length in piece.extents)


def _ordered(value: int) -> bytes:
    data = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([len(data)]) + data


def _ordered_signed(value: int) -> bytes:
    """Encodes a signed integer so that its bytes sort as the number does.

    The result begins with a 1 bit for each of its bytes (a 0 bit for a negative number).  The bits
    of the number follow.
    """
    size = 1
    while not -(1 << (7 * size - 1)) <= value < 1 << (7 * size - 1):
        size += 1
    head = ((1 << size) - 1) << 7 * size
    return ((value & (1 << 8 * size) - 1) ^ head).to_bytes(size, "big")


def encode_header(num_shards: int) -> bytes:
    """Returns a BundleHeaderProto: little-endian, version 1."""
    header = BundleHeader(num_shards=num_shards)
    header.version.producer = 1
    encoded: bytes = header.SerializeToString()
    return encoded


def new_entry(dtype: int, shape: tuple[int, ...], shard: int) -> Any:
    """Creates the BundleEntryProto of a tensor."""
    entry = BundleEntry(dtype=dtype, shard_id=shard)
    entry.shape.SetInParent()
    for size in shape:
        entry.shape.dim.add(size=size)
    return entry


def add_slice(entry: Any, piece: Slice) -> None:
    """Adds a slice to the entry of its full tensor.

    The slice's own entry says where its bytes are.
    """
    added = entry.slices.add()
    for start, length in piece.extents:
        added.extent.add(**({} if length == _FULL else {"start": start, "length": length}))
