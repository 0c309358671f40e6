"""Record of a trainer's imports, as its standby and the next launch of the same command read it.

Written by the trainer once it trains (procsv/training/process/import_record.py): in the run directory for the standby, and in the
logdir's records for a later launch, whose standby can then be made before the first trainer.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from procsv.base.json_data import decode_json, encode_json
from procsv.base.run.paths import RunPaths
from procsv.base.system.atomic_file import replace_file

BYTES_MAX = 2**24


class File(msgspec.Struct, frozen=True, array_like=True):
    """One version of a file."""

    size: int
    mtime_ns: int


class Loaded(msgspec.Struct, frozen=True):
    """The contents of `paths.loaded` and `paths.imports`."""

    environment: dict[str, str | None] = {}  # what the program had changed; None: removed
    modules: tuple[str, ...] = ()  # in the order in which their imports began
    own: tuple[str, ...] = ()  # top-level names of the program's modules
    command: tuple[str, ...] = ()  # interpreter, its version, target and arguments
    files: dict[str, File] = {}  # the program's own, by path


def command_of(target: str, args: tuple[str, ...]) -> tuple[str, ...]:
    return sys.executable, sys.version, target, *args


def file_now(path: str) -> File | None:
    """None of what is no file."""
    with contextlib.suppress(OSError, ValueError):
        found = Path(path).stat()
        return File(found.st_size, found.st_mtime_ns)
    return None


def read_loaded(path: Path) -> Loaded:
    """The last trainer's record, or an empty one if it is damaged or lost."""
    try:
        return decode_json(path.read_bytes(), Loaded)
    except (OSError, msgspec.DecodeError):
        return Loaded()


def write_loaded(path: Path, loaded: Loaded) -> None:
    """OSError passes through."""
    replace_file(path, encode_json(loaded), durable=False, mode=0o600)


def take_earlier(paths: RunPaths, command: tuple[str, ...]) -> bool:
    """Makes the record of an earlier launch of the same command this run's own; whether there is one.

    Not where a file of the program is another now: it may set the environment otherwise before its imports.  Not one that
    somebody else has written, who would decide what we import.
    """
    loaded = _read_own(paths.imports)
    is_the_same = loaded.command == command and _are_unchanged(loaded.files)
    return is_the_same and leave_for_standby(paths, loaded)


def leave_for_standby(paths: RunPaths, loaded: Loaded) -> bool:
    """Makes `loaded` what the run's first standby imports; whether there is anything to import."""
    with contextlib.suppress(OSError):  # then the first trainer starts without
        if loaded.modules:
            write_loaded(paths.loaded, loaded)
            return True
    return False


def _are_unchanged(files: Mapping[str, File]) -> bool:
    return bool(files) and all(file_now(path) == file for path, file in files.items())


def _read_own(path: Path) -> Loaded:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as stream:
            found = os.fstat(fd)
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                return Loaded()
            return decode_json(stream.read(BYTES_MAX), Loaded)
    except (OSError, msgspec.DecodeError):
        return Loaded()
