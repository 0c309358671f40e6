"""Files that are replaced whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def replace_file(path: Path, data: bytes | Iterable[bytes], durable: bool = True) -> None:
    """Puts `data`, or all its pieces, at `path` by write, fsync, rename and fsync of the directory.

    Killed at any line: the old file stands whole, with perhaps a dot-file beside it that the next call replaces.
    OSError passes through, with the temporary removed.  `durable=False` leaves out the fsyncs: a kill is
    survived all the same, a power loss may give the old file.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            for piece in (data,) if isinstance(data, bytes) else data:
                view = memoryview(piece)
                while view:
                    view = view[os.write(fd, view) :]
            if durable:
                os.fsync(fd)  # a failed fsync is never repeated: the file is thrown away
        finally:
            os.close(fd)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        fsync_dir(path.parent)


def fsync_dir(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
