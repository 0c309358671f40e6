"""Write V2 checkpoints without TensorFlow, byte for byte as SaveV2 and MergeV2Checkpoints would.

write.py calls it on the disk thread.  `plan_bundle` comes first.  It raises `UnsupportedTensor` for
a snapshot that cannot become a checkpoint, before any file is touched.  This module never renames
or reads a file.  It makes nothing durable; it only lets the disk begin to write early.

It reads each byte from the slot once, a chunk at a time.  While a chunk is in the processor's
cache, this module hashes it and writes it.  One hash is compared with the trainer's checksum.  The
others become checksums of the new file.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import xxhash

from procsv.base.run.manifest import FileSum
from procsv.base.system import disk
from procsv.ipc.shm.slot_index import DTYPES, PACKED, Contents, TensorEntry, unpack_strings
from procsv.services.checkpoint.core.facts import WriteMismatch
from procsv.services.checkpoint.format.bundle_index import (
    STRING,
    VARIANT,
    Slice,
    UnsupportedTensor,
    add_slice,
    encode_header,
    encode_table,
    new_entry,
    parse_slice,
    slice_key,
    varint,
)
from procsv.services.checkpoint.format.bundle_reader import mask
from procsv.services.checkpoint.format.data_file import DataFile

CHUNK_BYTES = 2**20  # fits the processor's cache; a chunk is copied, because crc32c takes only immutable bytes

_PACKED = {"string": STRING, "variant": VARIANT}  # TensorFlow's numbers of these types


class BundlePlan(msgspec.Struct):
    """The tensors to write, after `plan_bundle` has checked that a checkpoint can hold them.

    `slices` maps (shard, index in the shard) to the slice of its tensor.  A slice that covers its
    whole tensor has no entry.
    """

    shards: tuple[tuple[TensorEntry, ...], ...]
    slices: dict[tuple[int, int], Slice] = msgspec.field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.shards)


def plan_bundle(contents: Contents) -> BundlePlan:
    """Plans a checkpoint; UnsupportedTensor if it cannot be written."""
    plan = BundlePlan(contents.shards if contents.sharded else contents.shards[:1])
    whole: set[bytes] = set()
    parts: dict[bytes, tuple[str, tuple[int, ...]]] = {}
    for number, shard in enumerate(plan.shards):
        if not shard:
            raise UnsupportedTensor("a shard without tensors")
        for place, entry in enumerate(shard):
            piece = _slice_of(entry)
            key = entry.key.encode()
            if piece is not None:
                plan.slices[number, place] = piece
                if parts.setdefault(key, (entry.dtype, piece.full_shape)) != (entry.dtype, piece.full_shape):
                    raise UnsupportedTensor(f"slices of {entry.key} that do not agree")
                key = slice_key(key, piece)
            if not key or key in whole:
                raise UnsupportedTensor(f"{entry.key!r} twice, or without a name")
            whole.add(key)
    if whole & parts.keys():
        raise UnsupportedTensor("a tensor both whole and in slices")
    return plan


def _slice_of(entry: TensorEntry) -> Slice | None:
    """Returns the slice that an entry holds; None if it holds a whole tensor."""
    if entry.dtype == "variant" and entry.slice:
        raise UnsupportedTensor("a slice of variants")
    if entry.dtype not in PACKED:
        if entry.dtype not in DTYPES:
            raise UnsupportedTensor(entry.dtype)
        if math.prod(entry.shape) * DTYPES[entry.dtype][1] != entry.size:
            raise UnsupportedTensor(f"{entry.key}: {entry.size} bytes for {entry.shape} of {entry.dtype}")
    if not entry.slice:
        return None
    piece = parse_slice(entry.slice)
    if piece.shape != entry.shape:
        raise UnsupportedTensor(f"{entry.key}: slice {entry.slice!r} of shape {entry.shape}")
    return None if piece.is_full else piece


class BundleWriter:
    """One checkpoint in the making: its data files one after another, then its index."""

    def __init__(self, plan: BundlePlan, memory: mmap.mmap, prefix: str) -> None:
        self.files: dict[Path, FileSum] = {}  # intended sizes and sums
        self.proven: set[Path] = set()  # files whose bytes were checked after the disk had taken them
        self._plan = plan
        self._memory = memory
        self._prefix = prefix
        self._entries: dict[bytes, Any] = {}  # BundleEntryProto by key

    def write_shard(self, number: int) -> Path:
        """Writes one data file.

        Killed in the middle: the file has no index, and the next start sweeps its directory.
        """
        path = Path(f"{self._prefix}.data-{number:05d}-of-{self._plan.count:05d}")
        file = DataFile(path)
        try:
            for place, entry in enumerate(self._plan.shards[number]):
                self._put_tensor(file, number, entry, self._plan.slices.get((number, place)))
            self.files[path] = file.finish_file()
            if file.is_direct:
                self.proven.add(path)
        finally:
            file.close()
        return path

    def write_index(self) -> Path:
        path = Path(self._prefix + ".index")
        pairs = [(b"", encode_header(self._plan.count))]
        pairs += [(key, self._entries[key].SerializeToString()) for key in sorted(self._entries)]
        data = encode_table(pairs)
        disk.write_file(path, (data,), durable=False)
        self.files[path] = FileSum(len(data), xxhash.xxh3_128_hexdigest(data))
        return path

    def _put_tensor(self, file: DataFile, shard: int, tensor: TensorEntry, piece: Slice | None) -> None:
        key = tensor.key.encode()
        dtype = _PACKED.get(tensor.dtype) or DTYPES[tensor.dtype][0]
        if piece is not None:
            add_slice(self._entries.setdefault(key, new_entry(dtype, piece.full_shape, shard)), piece)
            key = slice_key(key, piece)
        entry = new_entry(dtype, tensor.shape, shard)
        entry.offset = file.size
        put = {STRING: self._put_strings, VARIANT: self._put_variants}.get(dtype, self._put_bytes)
        crc = put(file, tensor)
        entry.size, entry.crc32c = file.size - entry.offset, mask(crc)
        self._entries[key] = entry

    def _put_bytes(self, file: DataFile, entry: TensorEntry) -> int:
        crc, seen = 0, xxhash.xxh3_64()
        for chunk in _chunks(self._memory, entry):
            seen.update(chunk)
            crc = google_crc32c.extend(crc, chunk)
            file.append_data(chunk)
        if seen.intdigest() != entry.hash:
            raise _mismatch(entry)
        return crc

    def _put_variants(self, file: DataFile, entry: TensorEntry) -> int:
        """Writes each variant: its length, its VariantTensorDataProto, and a running checksum.

        The running checksum covers everything so far, including the earlier checksums.
        """
        crc = 0
        for value in self._packed(entry):
            crc = google_crc32c.extend(google_crc32c.extend(crc, struct.pack("<Q", len(value))), value)
            check = struct.pack("<I", mask(crc))
            crc = google_crc32c.extend(crc, check)
            file.append_data(varint(len(value)) + value + check)
        return int(crc)

    def _packed(self, entry: TensorEntry) -> list[bytes]:
        packed = self._memory[entry.offset : entry.offset + entry.size]
        if xxhash.xxh3_64_intdigest(packed) != entry.hash:
            raise _mismatch(entry)
        values = unpack_strings(packed)
        if len(values) != math.prod(entry.shape):
            raise WriteMismatch(f"{entry.key}: {len(values)} elements for shape {entry.shape}")
        return values

    def _put_strings(self, file: DataFile, entry: TensorEntry) -> int:
        """Writes the lengths of the strings, a checksum of the lengths, and the strings' bytes."""
        values = self._packed(entry)
        sizes = [len(value) for value in values]  # the packed form limits each to less than 2**32
        crc = google_crc32c.value(struct.pack(f"<{len(sizes)}I", *sizes))
        check = struct.pack("<I", mask(crc))
        text = b"".join(values)
        file.append_data(b"".join(varint(size) for size in sizes) + check)
        file.append_data(text)
        return int(google_crc32c.extend(google_crc32c.extend(crc, check), text))


def _mismatch(entry: TensorEntry) -> WriteMismatch:
    return WriteMismatch(f"{entry.key} does not match the checksum that was taken in the trainer")


def _chunks(memory: mmap.mmap, entry: TensorEntry) -> Iterator[bytes]:
    end = entry.offset + entry.size
    for at in range(entry.offset, end, CHUNK_BYTES):
        yield memory[at : min(at + CHUNK_BYTES, end)]
