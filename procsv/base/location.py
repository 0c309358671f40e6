"""Distinguish paths from URLs.

System calls take paths.  Only TensorFlow's filesystem layer can reach URLs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_PATTERN = frozenset("*?[\\")


def is_remote(location: str | os.PathLike[str]) -> bool:
    """Whether a location is a URL: gs://, s3://, file://, …"""
    return "://" in os.fspath(location)


def local_path(location: str | os.PathLike[str]) -> Path | None:
    """Returns the path for open(); None for a URL."""
    return None if is_remote(location) else Path(location)


@contextlib.contextmanager
def literal_path(path: str) -> Iterator[str]:
    """Yields a form of `path` that TensorFlow can take, valid while the block runs.

    TensorFlow reads every path as a pattern.  So a directory such as `runs/[lr=0.1]` does not match
    its own files, and not all of TensorFlow supports escaping.  TensorFlow also rejects names that
    are not UTF-8.  This function replaces such a directory by its name in /proc, and yields any
    other path unchanged.  A name in /proc leaves nothing behind after a kill.  TensorFlow's servers
    find the directory, too, if they run here as the same user.  The part after the directory stays,
    because names of checkpoints may be patterns.
    """
    directory, name = os.path.split(path)
    if is_remote(path) or (is_utf8(directory) and not _PATTERN & set(directory)):
        yield path
        return
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/{os.getpid()}/fd/{fd}/{name}"
    finally:
        os.close(fd)


def lasting_path(path: str) -> str:
    """Like literal_path, but valid as long as this process lives.

    Changes only a directory that is not UTF-8.  TensorFlow may read a checkpoint only later, when
    it creates the variables.
    """
    directory, name = os.path.split(path)
    if is_utf8(directory):
        return path
    return f"/proc/{os.getpid()}/fd/{os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)}/{name}"


def is_utf8(text: str) -> bool:
    """Returns False for a name with other bytes, which Python represents as lone surrogates."""
    return text.encode(errors="ignore").decode() == text
