"""Give the runs in a directory a random id, which no copy of the directory has.

The first launch in a logdir creates the id in `<logdir>/procsv/id.json`, and later launches keep
it. Process marks, runtime directories and shared memory are named by the id and not by the path.
So two directories with the same path (a private /tmp, two containers) have different runs, and so
have a directory and its successor after somebody has deleted and recreated it.

A copy contains the file, too.  So the file also records the directory in which it was created, by
device and inode.  Anywhere else, the id is a hash of the file's contents and its present directory.
Thus a copy has its own id without being changed, and two machines that number a network filesystem
differently do not overwrite each other's files.  The same applies to another user's file, which
could name a run of ours.

A logdir that is a URL has no id.  The URL is the same for everybody, so its hash names the runs.  A
restarted container that has lost its disk then still finds its snapshots in shared memory.

If a filesystem's device number changes between two launches, the logdir counts as a copy.  A killed
run's shared memory is not found then, and the next launch resumes from the newest checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from pathlib import Path
from typing import Annotated

import msgspec

from procsv.base.encoding import decode_sealed, encode_json, seal
from procsv.base.system import stale
from procsv.base.system.atomic_file import create_file, replace_file, set_aside
from procsv.base.system.data_file import open_data

ID = re.compile(r"[0-9a-f]{16}")
ID_BYTES_MAX = 2**12
TRIES_MAX = 10  # each failure means that another launch has just created or removed the file
PRIVATE, READABLE = 0o700, 0o644  # the id is in the names of directories that all users see

_Number = Annotated[int, msgspec.Meta(ge=0)]


class IdFile(msgspec.Struct, frozen=True):
    """The contents of id.json."""

    id: Annotated[str, msgspec.Meta(pattern=rf"^{ID.pattern}$")]
    device: _Number  # of the directory in which the file was created
    inode: _Number


def id_file(home: Path) -> Path:
    """Returns the path of the file.  `home`: the directory `procsv` in a logdir."""
    return home / "id.json"


def id_here(said: IdFile, device: int, inode: int, *, is_owners: bool) -> str:
    """Returns the id of the directory with that `device` and `inode`, whose file contains `said`.

    `is_owners`: the file belongs to the user of the run.
    """
    if is_owners and (said.device, said.inode) == (device, inode):
        return said.id
    return hashlib.sha256(f"{said.id} {device} {inode}".encode()).hexdigest()[:16]


def find_id(home: Path, owner: int | None = None) -> str:
    """Returns the id of the runs of user `owner`, by default ours, in `home`.

    "" if there is none, or it is damaged.
    """
    try:
        return stale.try_again(lambda: _read_id(home, os.geteuid() if owner is None else owner))
    except (OSError, msgspec.DecodeError):
        return ""


def _read_id(home: Path, owner: int) -> str:
    fd = open_data(id_file(home))
    try:
        said, file, directory = decode_sealed(os.read(fd, ID_BYTES_MAX), IdFile), os.fstat(fd), home.stat()
    finally:
        stale.close(fd)
    return id_here(said, directory.st_dev, directory.st_ino, is_owners=file.st_uid == owner)


def make_id(home: Path) -> str:
    """Returns the id of our runs in `home`; creates `home` and the id if necessary.

    OSError passes through.

    If several launches begin at the same time, one creates the id, and all get it.
    """
    home.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    for _ in range(TRIES_MAX):
        try:
            return stale.try_again(lambda: _read_id(home, os.geteuid()))
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):  # another launch has just created it
                create_file(id_file(home), _encode(secrets.token_hex(8), home), READABLE)
        except PermissionError:
            raise
        except (OSError, msgspec.DecodeError):
            # The file is a link, or damaged.  Another launch may also find that, and create another id.  The launch
            # that gets the directory's lock then writes its own (keep_name).
            set_aside(id_file(home))
    raise OSError(f"{id_file(home)} cannot be read")


def write_id(home: Path, run_id: str) -> None:
    """Gives `home` the id of our living run, after somebody has deleted and recreated it.

    OSError passes through.
    """
    replace_file(id_file(home), _encode(run_id, home), mode=READABLE)


def can_write_id(home: Path) -> bool:
    """Returns False if the filesystem gives our files to another user.

    Then no launch would believe our id.
    """
    with contextlib.suppress(OSError):
        return id_file(home).lstat().st_uid == os.geteuid()
    return True


def _encode(run_id: str, home: Path) -> bytes:
    there = home.stat()
    return seal(encode_json(IdFile(run_id, there.st_dev, there.st_ino))) + b"\n"
