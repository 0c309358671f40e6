"""Paths for TensorFlow, which reads every path as a pattern and cannot be told not to.

A directory such as `runs/[lr=0.1]` matches no file of its own, and no way of escaping is known to all of TensorFlow.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from procsv.base.location import is_remote

_PATTERN = frozenset("*?[\\")


@contextlib.contextmanager
def literal_path(path: str) -> Iterator[str]:
    """`path` under another name for its directory, as long as the block lasts; `path` itself where that is literal.

    What comes after the directory stays: the names of checkpoints may be patterns.  Goes through /proc, so that a kill
    leaves nothing, and so that TensorFlow's servers find it, too, if they run here and for the same user.
    """
    directory, name = os.path.split(path)
    if is_remote(path) or not _PATTERN & set(directory):
        yield path
        return
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/{os.getpid()}/fd/{fd}/{name}"
    finally:
        os.close(fd)
