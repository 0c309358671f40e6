"""Locations as people name them: a path that system calls take, or a URL that only TensorFlow's filesystem layer can reach."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_PATTERN = frozenset("*?[\\")


def is_remote(location: str | os.PathLike[str]) -> bool:
    """Whether it is a URL: gs://, s3://, file://, …"""
    return "://" in os.fspath(location)


def local_path(location: str | os.PathLike[str]) -> Path | None:
    """The path that open() takes; None of a URL."""
    return None if is_remote(location) else Path(location)


@contextlib.contextmanager
def literal_path(path: str) -> Iterator[str]:
    """`path` under another name for its directory, as long as the block lasts; `path` itself where that is literal.

    TensorFlow reads every path as a pattern: a directory such as `runs/[lr=0.1]` matches no file of its own, and no way of escaping is known
    to all of TensorFlow.  And it takes no name that is not UTF-8.
    What comes after the directory stays: the names of checkpoints may be patterns.  Goes through /proc, so that a kill
    leaves nothing, and so that TensorFlow's servers find it, too, if they run here and for the same user.
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
    """`path`, under another name for its directory if TensorFlow cannot take that one, for as long as this process lives.

    What is restored from there may be read as late as the variables are made.
    """
    directory, name = os.path.split(path)
    if is_utf8(directory):
        return path
    return f"/proc/{os.getpid()}/fd/{os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)}/{name}"


def is_utf8(text: str) -> bool:
    """False of a name with other bytes, which Python has as lone surrogates."""
    return text.encode(errors="ignore").decode() == text
