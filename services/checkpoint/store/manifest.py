"""The manifest beside each checkpoint: what its files must look like.  Written last, read before anything is trusted.

Called by the commit, the catalog and tests.  Never decides what happens to a checkpoint that fails it.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import xxhash

from procsv.base.run.manifest import FileSum, Manifest
from procsv.base.system import progress_counter

MANIFEST_VERSION = 1
_CHUNK_BYTES = 4 * 2**20


class BadCheckpoint(Exception):
    """A checkpoint that must not be used.  The text says why."""


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"


def decode_manifest(data: bytes) -> Manifest:
    """BadCheckpoint if it is not a manifest, or one that only a later procsv can read."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadCheckpoint(f"its manifest cannot be read: {error}") from error
    if manifest.version > MANIFEST_VERSION:
        raise BadCheckpoint(f"its manifest has version {manifest.version}; this procsv reads {MANIFEST_VERSION}")
    if not manifest.files or any(Path(name).name != name for name in manifest.files):
        raise BadCheckpoint("its manifest names no files, or files elsewhere")
    return manifest


def read_manifest(path: Path) -> Manifest | None:
    """The manifest at `path`; None if there is none; BadCheckpoint if it makes no sense."""
    try:
        return decode_manifest(path.read_bytes())
    except FileNotFoundError:
        return None


def sum_file(path: Path) -> FileSum:
    """Reads a file whole, in pieces."""
    digest, size = xxhash.xxh3_128(), 0
    buffer = bytearray(_CHUNK_BYTES)
    view = memoryview(buffer)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while got := os.readv(fd, [buffer]):
            digest.update(view[:got])
            size += got
            progress_counter.move()
    finally:
        os.close(fd)
    return FileSum(size, digest.hexdigest())


def verify_file(path: Path, expected: FileSum) -> None:
    """BadCheckpoint if the file at `path` is not what it should be."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise BadCheckpoint(f"{path.name} is missing") from None
    if size != expected.size:
        raise BadCheckpoint(f"{path.name} has {size} bytes; its manifest lists {expected.size}")
    if sum_file(path).xxh3_128 != expected.xxh3_128:
        raise BadCheckpoint(f"{path.name} does not match its checksum")


def verify_files(manifest: Manifest, directory: Path) -> None:
    """BadCheckpoint if one of the manifest's files is not as it should be."""
    for name, expected in manifest.files.items():
        verify_file(directory / name, expected)
