"""Read V2 checkpoints without TensorFlow: structure, entries and checksums.

The catalog uses it for checkpoints without a manifest, and the writer to read its files back.  In
the V2 format, `<prefix>.index` is a LevelDB table with one BundleEntryProto per tensor.  Each entry
holds the tensor's `.data` file, its offset in that file, and the CRC-32C of its bytes.  This module
never writes.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from procsv.base.system import progress_counter
from procsv.base.system.data_file import LARGE_BYTES_MAX, open_stream, read_data
from procsv.services.checkpoint.format.protos import BundleEntry, BundleHeader

TABLE_MAGIC = 0xDB4775248B80FB57
FOOTER_BYTES = 48
_TRAILER_BYTES = 5  # type and checksum after each block
_CHUNK_BYTES = 4 * 2**20
_STRING, _RESOURCE, _VARIANT = 7, 20, 21  # DataType numbers of tensors that are stored differently from memory
_MASK_DELTA = 0xA282EAD8


class BadBundle(Exception):
    """The checkpoint is not whole.  The text says what is wrong with which file."""


class Bundle(msgspec.Struct, frozen=True):
    """A checkpoint's index."""

    prefix: str
    num_shards: int
    entries: dict[bytes, Any]  # BundleEntryProto by key

    def data_file(self, shard: int) -> Path:
        return Path(f"{self.prefix}.data-{shard:05d}-of-{self.num_shards:05d}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def mask(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def _block(data: bytes, offset: int, size: int) -> list[tuple[bytes, bytes]]:
    """Verifies the checksum of a table block and returns its (key, value) pairs."""
    end = offset + size
    if end + _TRAILER_BYTES > len(data):
        raise ValueError("a block lies outside the file")
    if mask(google_crc32c.value(data[offset : end + 1])) != struct.unpack_from("<I", data, end + 1)[0]:
        raise ValueError("a block does not match its checksum")
    if data[end] != 0:
        raise ValueError("a block is compressed")
    restarts = struct.unpack_from("<I", data, end - 4)[0]
    stop = end - 4 - 4 * restarts
    pairs, key, at = [], b"", offset
    while at < stop:
        shared, at = _varint(data, at)
        fresh, at = _varint(data, at)
        length, at = _varint(data, at)
        key = key[:shared] + data[at : at + fresh]
        at += fresh
        pairs.append((key, data[at : at + length]))
        at += length
    return pairs


def _handle(data: bytes) -> tuple[int, int]:
    offset, at = _varint(data, 0)
    return offset, _varint(data, at)[0]


def _parse_table(data: bytes) -> dict[bytes, bytes]:
    if len(data) < FOOTER_BYTES or struct.unpack_from("<Q", data, len(data) - 8)[0] != TABLE_MAGIC:
        raise ValueError("it does not end as a table does")
    footer = data[-FOOTER_BYTES:]
    _, at = _varint(footer, 0)
    _, at = _varint(footer, at)
    index, at = _varint(footer, at)
    size, _ = _varint(footer, at)
    table: dict[bytes, bytes] = {}
    for _, handle in _block(data, index, size):
        table.update(_block(data, *_handle(handle)))
    return table


def read_index(prefix: str) -> Bundle:
    """Reads the index of checkpoint `prefix`.

    BadBundle if it is damaged, OSError if it cannot be read.
    """
    path = Path(prefix + ".index")
    data = read_data(path, LARGE_BYTES_MAX, follows_links=True)
    try:
        table = _parse_table(data)
        header = BundleHeader.FromString(table.pop(b""))
        entries = {key: BundleEntry.FromString(value) for key, value in table.items()}
    except (ValueError, IndexError, KeyError, struct.error, DecodeError) as error:
        raise BadBundle(f"{path.name} is damaged: {error}") from error
    return Bundle(prefix, header.num_shards, entries)


def check_structure(prefix: str) -> Bundle:
    """Returns the index, after checking that each data file exists and is long enough.

    BadBundle names a file that is missing or too short.
    """
    bundle = read_index(prefix)
    needed = dict.fromkeys(range(bundle.num_shards), 0)
    for entry in bundle.entries.values():
        needed[entry.shard_id] = max(needed.get(entry.shard_id, 0), entry.offset + entry.size)
    for shard, size in needed.items():
        path = bundle.data_file(shard)
        try:
            there = path.stat().st_size
        except FileNotFoundError:
            raise BadBundle(f"{path.name} is missing") from None
        if there < size:
            raise BadBundle(f"{path.name} has {there} bytes; the index lists {size}")
    return bundle


def check_contents(bundle: Bundle) -> None:
    """Verifies the checksum of every tensor except resources and variants (see `_is_intact`).

    BadBundle names the tensor.
    """
    for shard in range(bundle.num_shards):
        with open_stream(bundle.data_file(shard), follows_links=True) as file:
            for key, entry in bundle.entries.items():
                if entry.shard_id == shard and not entry.slices and not _is_intact(file.fileno(), entry):
                    name = key.decode("utf-8", "backslashreplace")
                    raise BadBundle(f"{bundle.data_file(shard).name}: {name} does not match its checksum")


def _is_intact(fd: int, entry: Any) -> bool:
    if entry.dtype in (_RESOURCE, _VARIANT):
        return True  # serialized in a format of their own; TensorFlow checks them when it reads them
    if entry.dtype == _STRING:
        return bool(_string_crc(os.pread(fd, entry.size, entry.offset), count_elements(entry)) == entry.crc32c)
    crc, at, end = 0, entry.offset, entry.offset + entry.size
    while at < end:
        chunk = os.pread(fd, min(_CHUNK_BYTES, end - at), at)
        if not chunk:
            return False
        crc = google_crc32c.extend(crc, chunk)
        at += len(chunk)
        progress_counter.advance()
    return bool(mask(crc) == entry.crc32c)


def count_elements(entry: Any) -> int:
    """Counts the elements in the shape of a BundleEntryProto."""
    return math.prod(dim.size for dim in entry.shape.dim)


def _string_crc(data: bytes, elements: int) -> int:
    """Returns the checksum of a string tensor; -1 if the data is too short.

    It covers the lengths as integers, the checksum of the lengths, and the bytes.
    """
    crc = at = 0
    try:
        for _ in range(elements):
            length, at = _varint(data, at)
            crc = google_crc32c.extend(crc, struct.pack("<I" if length < 2**32 else "<Q", length))
    except IndexError:
        return -1
    return mask(google_crc32c.extend(crc, data[at:]))


def scalar_int(bundle: Bundle, key: str) -> int | None:
    """Returns the value of an int32 or int64 tensor with one element, such as the global step.

    None if the checkpoint has no such tensor.
    """
    entry = bundle.entries.get(key.encode())
    if entry is None or count_elements(entry) != 1 or entry.slices or (entry.dtype, entry.size) not in ((9, 8), (3, 4)):
        return None
    with open_stream(bundle.data_file(entry.shard_id), follows_links=True) as file:
        return int.from_bytes(os.pread(file.fileno(), entry.size, entry.offset), "little", signed=True)
