"""Spoils the newest checkpoint of a logdir, as a bad disk would: one bit turned, half a file missing, a file gone.

Used by injector.py, because a plan of the user's says so.  Never touches any other checkpoint.
"""

from __future__ import annotations

import re
from pathlib import Path

_NUMBER = re.compile(r"-(\d+)\.index$")


def newest_files(logdir: Path) -> list[Path]:
    """Index and data files of the checkpoint of the highest step; [] if there is none."""
    found = [(int(match[1]), path) for path in logdir.glob("*.index") if (match := _NUMBER.search(path.name))]
    if not found:
        return []
    index = max(found)[1]
    return [index, *sorted(logdir.glob(f"{_literal(index.name.removesuffix('.index'))}.data-*"))]


def _literal(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)


def corrupt_newest(logdir: Path, how: str) -> Path | None:
    """Does it to the last data file; which file that was, or None if there is no checkpoint."""
    files = newest_files(logdir)
    if not files:
        return None
    victim = files[-1]
    if how == "delete":
        victim.unlink()
        return victim
    size = victim.stat().st_size
    if how == "truncate":
        with victim.open("r+b") as stream:
            stream.truncate(size // 2)
        return victim
    with victim.open("r+b") as stream:
        stream.seek(size // 2)
        byte = stream.read(1)
        stream.seek(size // 2)
        stream.write(bytes((byte[0] ^ 0x10,)) if byte else b"\x10")
    return victim
