"""Read and write the manifest beside each checkpoint, and verify the files that it lists.

The manifest holds the sizes and checksums of the checkpoint's files.  It is written after all of
them, and read before any of them is trusted.  This module never decides what happens to a
checkpoint that fails verification.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec
import xxhash

from procsv.base.encoding import decode_sealed, encode_json, seal
from procsv.base.run.manifest import FileId, FileSum, Manifest
from procsv.base.system import progress_counter
from procsv.base.system.data_file import open_data, read_data
from procsv.services.checkpoint.format.names import index_of, manifest_of, model_files

MANIFEST_VERSION = 1
_CHUNK_BYTES = 4 * 2**20


class BadCheckpoint(Exception):
    """A checkpoint that must not be used.  The text says why."""


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.format(seal(encode_json(manifest))) + b"\n"


def decode_manifest(data: bytes) -> Manifest:
    """Decodes a manifest; BadCheckpoint if it is invalid, or written by a later procsv."""
    try:
        manifest = decode_sealed(data, Manifest, may_lack_seal=True)
    except msgspec.DecodeError as error:
        raise BadCheckpoint(f"its manifest cannot be read: {error}") from error
    if manifest.version > MANIFEST_VERSION:
        raise BadCheckpoint(f"its manifest has version {manifest.version}; this procsv reads {MANIFEST_VERSION}")
    if not manifest.files or any("/" in name or name == "." for name in manifest.files):
        raise BadCheckpoint("its manifest names no files, or files elsewhere")
    return manifest


def read_manifest(path: Path) -> Manifest | None:
    """Reads the manifest at `path`.  None if there is none, BadCheckpoint if it is garbled."""
    try:
        return decode_manifest(read_data(path, follows_links=True))
    except FileNotFoundError:
        return None


def with_index(manifest: Manifest, path: str) -> Manifest:
    """Returns `manifest` with the identity of the index of checkpoint `path`.

    The index must be in place.
    """
    return msgspec.structs.replace(manifest, index=_id_of(index_of(path).stat()))


def is_of(manifest: Manifest | None, path: str) -> bool:
    """Whether `manifest` was written for the present index of checkpoint `path`.

    False if the checkpoint was copied, or if another Saver has replaced the index since.
    `manifest` is None if it is garbled or missing.  If it does not hold the index's identity, the
    times of the files decide.  This does not read the index.  FileNotFoundError if the index is
    missing, or if the manifest is missing and its time is needed.
    """
    index = index_of(path).stat()
    if manifest is not None and manifest.index is not None:
        return manifest.index == _id_of(index)
    if manifest is not None and not manifest.sequence:
        return manifest.time == index.st_mtime  # so earlier versions of procsv marked other writers' checkpoints
    return manifest_of(path).stat().st_mtime_ns >= index.st_mtime_ns


def _id_of(file: os.stat_result) -> FileId:
    return FileId(file.st_ino, file.st_size, file.st_mtime_ns)


def manifest_or_none(path: str) -> Manifest | None:
    """Returns the manifest of checkpoint `path`; None if there is none, or it cannot be read."""
    with contextlib.suppress(BadCheckpoint, OSError):
        return read_manifest(manifest_of(path))
    return None


def written(path: str) -> float:
    """Returns when a checkpoint was written (Unix seconds).

    The time comes from its manifest, or without one from its files; 0 if there are no files.
    """
    return time_of(path, manifest_or_none(path))


def time_of(path: str, manifest: Manifest | None) -> float:
    """Like `written`, for a caller that has read `manifest` (None: there is none)."""
    if manifest is not None:
        return manifest.time
    return max((file.stat().st_mtime for file in model_files(path)), default=0.0)


def sum_file(path: Path) -> FileSum:
    """Reads a whole file in pieces and returns its size and checksum."""
    digest, size = xxhash.xxh3_128(), 0
    fd = open_data(path, follows_links=True)
    try:
        # Most files are small, and clearing a large buffer costs time.
        buffer = bytearray(min(_CHUNK_BYTES, os.fstat(fd).st_size + 1))
        view = memoryview(buffer)
        while got := os.readv(fd, [buffer]):
            digest.update(view[:got])
            size += got
            progress_counter.advance()
    finally:
        os.close(fd)
    return FileSum(size, digest.hexdigest())


def check_sum(name: str, found: FileSum, expected: FileSum) -> None:
    """Raises BadCheckpoint if a file's sum is not the expected one."""
    if found.size != expected.size:
        raise BadCheckpoint(f"{name} has {found.size} bytes; its manifest lists {expected.size}")
    if found.xxh3_128 != expected.xxh3_128:
        raise BadCheckpoint(f"{name} does not match its checksum")


def verify_size(path: Path, expected: FileSum) -> None:
    """Raises BadCheckpoint if the file at `path` is missing or has another size."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise BadCheckpoint(f"{path.name} is missing") from None
    if size != expected.size:
        raise BadCheckpoint(f"{path.name} has {size} bytes; its manifest lists {expected.size}")


def verify_file(path: Path, expected: FileSum) -> None:
    """Raises BadCheckpoint if the file at `path` is missing or has other contents."""
    verify_size(path, expected)
    check_sum(path.name, sum_file(path), expected)


def verify_files(manifest: Manifest, directory: Path) -> None:
    """Raises BadCheckpoint if one of the manifest's files is missing or has other contents."""
    for name, expected in manifest.files.items():
        verify_file(directory / name, expected)
