"""Replace files as a whole or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path

from procsv.base.system import disk


def replace_file(path: Path, data: bytes | Iterable[bytes], durable: bool = True, mode: int = 0o644) -> None:
    """Puts `data`, or all its pieces, at `path` by write, fsync, rename and fsync of the directory.

    A kill before the rename leaves the old file whole, perhaps with a dot-file beside it that the
    next call replaces.  OSError passes through after the temporary file is removed.
    `durable=False` leaves out the fsyncs: the file survives a kill, but a power failure may bring
    the old file back.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        pieces = (data,) if isinstance(data, bytes) else data
        disk.write_file(temporary, pieces, mode, durable=durable, replace=True)
        disk.rename(temporary, path)
    except BaseException:
        disk.unlink_if_there(temporary)
        raise
    if durable:
        disk.fsync_path(path.parent)


def create_file(path: Path, data: bytes, mode: int) -> None:
    """Creates `path` as a whole; FileExistsError if it is there.

    The caller syncs its name, if necessary.  A kill before the link leaves a dot-file that nobody
    reads.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    disk.write_file(draft, (data,), mode, durable=True, replace=True)
    try:
        disk.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # no hard links.  A kill in this write_file leaves a part of the file; readers take it as damaged
        disk.write_file(path, (data,), mode, durable=True)
    finally:
        disk.unlink_if_there(draft)


def set_aside(path: Path) -> Path:
    """Renames a damaged file and returns its new path.

    The file is kept for inspection, but not read again.  It replaces a file that was set aside
    before.
    """
    kept = path.with_name(f"{path.name}.damaged")
    disk.rename(path, kept)
    return kept
