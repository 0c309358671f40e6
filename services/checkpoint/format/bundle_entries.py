"""Encode the entries of a V2 checkpoint's index as TensorFlow does, one for each tensor.

The bundle writer uses it.  Pure.
"""

from __future__ import annotations

from typing import Any

import msgspec

from procsv.services.checkpoint.format.protos import BundleEntry, BundleHeader

STRING, VARIANT = 7, 21
_FULL = -1  # the length of an extent that is "everything"


class UnsupportedTensor(Exception):
    """A tensor that no V2 checkpoint can hold; TensorFlow's own op would refuse it, too.  The text says why."""


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
    """Parses a `shape_and_slice` of SaveV2: "7 10 0,3:-" is the first three of seven rows of ten."""
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
    """Returns the key of a slice's own entry.  Such keys sort before a tensor's name and never equal one."""
    escaped = b"".join({0: b"\x00\xff", 255: b"\xff\x00"}.get(byte, bytes([byte])) for byte in key)
    out = _ordered(0) + escaped + b"\x00\x01" + _ordered(len(piece.extents))
    return out + b"".join(_ordered_signed(start) + _ordered_signed(length) for start, length in piece.extents)


def _ordered(value: int) -> bytes:
    data = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([len(data)]) + data


def _ordered_signed(value: int) -> bytes:
    """Encodes a signed integer: the number of leading bits is its length in bytes; inverted if negative."""
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
    """Adds a slice to the entry of its full tensor; the slices' own entries say where the bytes are."""
    added = entry.slices.add()
    for start, length in piece.extents:
        added.extent.add(**({} if length == _FULL else {"start": start, "length": length}))
