"""Record of a trainer's imports, as its standby and the next launch of the same command read it.

Written by the trainer once it trains (procsv/training/process/import_record.py): in the run directory for the standby, and in the
logdir's records for a later launch.  That one can make its standby before the first trainer, and sees which of the program's own
files have changed since they were imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from procsv.base.encoding import decode_json, encode_json
from procsv.base.run.paths import RunPaths
from procsv.base.system.atomic_file import replace_file
from procsv.base.system.data_file import open_data
from procsv.base.terminal import printable

BYTES_MAX = 2**24
FILES_SHOWN = 8
DIGEST_BYTES_MAX = 2**24  # a larger file is the same if its size and time are


class File(msgspec.Struct, frozen=True, array_like=True):
    """One version of a file."""

    size: int
    mtime_ns: int
    digest: str = ""  # of the content; "" if the file is too large to be read

    def is_as(self, other: File) -> bool:
        """Whether the content is the same, as far as both know it."""
        if self.digest and other.digest:
            return self.digest == other.digest
        return (self.size, self.mtime_ns) == (other.size, other.mtime_ns)


class LoadedModules(msgspec.Struct, frozen=True):
    """The contents of `paths.loaded` and `paths.imports`."""

    environment: dict[str, str | None] = {}  # what the program had changed; None: removed
    modules: tuple[str, ...] = ()  # in the order in which their imports began
    own: tuple[str, ...] = ()  # top-level names of the program's modules
    command: tuple[str, ...] = ()  # interpreter, its version, target and arguments
    files: dict[str, File] = {}  # the program's own, by path
    home: str = ""  # the program's directory: its files are found from there if the project was moved
    attempt: int = 0  # of the task whose state is saved, which has imported them; 0: nobody knows
    logdir_id: str = ""  # of the logdir that it was written for (run_id.py); a copy of that has another one


def command_of(target: str, args: tuple[str, ...]) -> tuple[str, ...]:
    return sys.executable, sys.version, target, *args


def file_now(path: str) -> File | None:
    """None of what is no file."""
    with contextlib.suppress(OSError, ValueError):
        found = Path(path).stat()
        return File(found.st_size, found.st_mtime_ns)
    return None


def read_file(path: str) -> File | None:
    """As `file_now`, with the digest of what is in it."""
    found = file_now(path)
    if found is None or found.size > DIGEST_BYTES_MAX:
        return found
    with contextlib.suppress(OSError):
        if not Path(path).is_file():  # a pipe would keep us waiting
            return None
        return msgspec.structs.replace(found, digest=hashlib.sha256(Path(path).read_bytes()).hexdigest()[:32])
    return None


def changed_files(loaded: LoadedModules, home: str) -> tuple[str, ...]:
    """The program's own files that are others now, or gone, named from its directory `home`.

    A project that was moved, or copied, has its files at the same places from there.
    """
    changed = []
    for path, file in loaded.files.items():
        name = os.path.relpath(path, loaded.home or home)
        now = read_file(os.path.normpath(f"{home}/{name}")) or read_file(path)
        if now is None or not now.is_as(file):
            changed.append(name)
    return tuple(changed)


def list_files(names: Sequence[str]) -> str:
    """For people; the names are data from a file."""
    more = f" and {len(names) - FILES_SHOWN} more" if len(names) > FILES_SHOWN else ""
    return ", ".join(map(printable, names[:FILES_SHOWN])) + more


def read_loaded(path: Path) -> LoadedModules:
    """The last trainer's record, or an empty one if it is damaged or lost."""
    try:
        return decode_json(path.read_bytes(), LoadedModules)
    except (OSError, msgspec.DecodeError):
        return LoadedModules()


def write_loaded(path: Path, loaded: LoadedModules) -> None:
    """OSError passes through."""
    replace_file(path, encode_json(loaded), durable=False, mode=0o600)


def take_earlier(paths: RunPaths, command: tuple[str, ...]) -> bool:
    """Makes the record of an earlier launch of the same command this run's own; whether there is one.

    Not where a file of the program is another now: it may set the environment otherwise before its imports.  Not one that
    somebody else has written, or that came with a copied logdir: its author would decide what we import.  Not one that has
    changed the environment, which is the program's to change.
    """
    loaded = read_own(paths.imports)
    if not loaded.modules or loaded.environment or loaded.command != command or loaded.logdir_id != paths.id:
        return False
    if not _are_unchanged(loaded.files):
        return False
    try:
        write_loaded(paths.loaded, loaded)
    except OSError:  # the first trainer starts without
        return False
    return True


def _are_unchanged(files: Mapping[str, File]) -> bool:
    now = {path: file_now(path) for path in files}
    return bool(files) and all(
        found is not None and (found.size, found.mtime_ns) == (files[path].size, files[path].mtime_ns)
        for path, found in now.items()
    )


def read_own(path: Path) -> LoadedModules:
    """The record if we have written it, and nobody else could; else an empty one."""
    try:
        fd = open_data(path)
        with os.fdopen(fd, "rb") as stream:
            found = os.fstat(fd)
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                return LoadedModules()
            return decode_json(stream.read(BYTES_MAX), LoadedModules)
    except (OSError, msgspec.DecodeError):
        return LoadedModules()
