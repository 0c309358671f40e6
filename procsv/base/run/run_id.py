"""Give the runs in a directory a random id, which no copy of the directory has.

The id lies in `<logdir>/procsv/id.json`, made once by the first launch there and kept for all later ones.  Process marks, runtime
directories and shared memory are named by it and not by the path: two directories with one path (a private /tmp, two containers)
are two runs, and a directory that was deleted and made again is another one.

A copy has the file, too.  So the file also says which directory it was made in, by device and inode.  Anywhere else, the id is a
hash of what it says and of where it lies: a copy has an id of its own although nobody has written to it, and two machines that number
one network filesystem differently do not overwrite each other's files.  The same holds for another user's file, who
could name a run of ours in it.

A logdir that is a URL has no id.  It is the same for everybody, so its runs are named by it, and a container that is started again, with what
was on its disk gone, finds what is still in shared memory.

A filesystem whose device number changed between two launches counts as a copy.  What a killed run had in shared memory is then not found,
and the next launch resumes from the newest checkpoint.
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
from procsv.base.system import disk, stale
from procsv.base.system.atomic_file import replace_file, set_aside
from procsv.base.system.data_file import open_data

ID = re.compile(r"[0-9a-f]{16}")
ID_BYTES_MAX = 2**12
TRIES_MAX = 10  # each loss means that another launch has just made or removed the file
PRIVATE, READABLE = 0o700, 0o644  # the id is in the names of directories that all users see

_Number = Annotated[int, msgspec.Meta(ge=0)]


class IdFile(msgspec.Struct, frozen=True):
    """The contents of id.json."""

    id: Annotated[str, msgspec.Meta(pattern=rf"^{ID.pattern}$")]
    device: _Number  # of the directory that the file was made in
    inode: _Number


def id_file(home: Path) -> Path:
    """`home`: the directory `procsv` in a logdir."""
    return home / "id.json"


def id_here(said: IdFile, device: int, inode: int, *, is_owners: bool) -> str:
    """The id of the directory with that `device` and `inode`, in which a file says `said`.

    `is_owners`: the file is of the user whose run it is.
    """
    if is_owners and (said.device, said.inode) == (device, inode):
        return said.id
    return hashlib.sha256(f"{said.id} {device} {inode}".encode()).hexdigest()[:16]


def find_id(home: Path, owner: int | None = None) -> str:
    """The id of the runs of user `owner`, by default ours, in `home`; "" if it has none, or a damaged one."""
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
    """The id of our runs in `home`, which is made if it is not there.  OSError.

    Of launches that begin at the same time, one makes the id, and all get it.  Killed before the link: a dot-file stays, which nobody
    reads.
    """
    home.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    for _ in range(TRIES_MAX):
        try:
            return stale.try_again(lambda: _read_id(home, os.geteuid()))
        except FileNotFoundError:
            _create(home)
        except PermissionError:
            raise
        except (
            OSError,
            msgspec.DecodeError,
        ):  # a link, or damaged: another launch may see that, too, and make another id.
            set_aside(id_file(home))  # The one that gets the directory's lock writes its own (keep_id).
    raise OSError(f"{id_file(home)} cannot be read")


def _create(home: Path) -> None:
    """Makes the file whole, unless another launch has just made it."""
    draft, data = home / f".id.{secrets.token_hex(4)}.new", _encode(secrets.token_hex(8), home)
    disk.write_file(draft, (data,), READABLE, durable=True, replace=True)
    try:
        with contextlib.suppress(FileExistsError):
            _link(draft, id_file(home))
    finally:
        disk.unlink_if_there(draft)


def _link(draft: Path, path: Path) -> None:
    try:
        disk.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # a filesystem without hard links: killed before the write, an empty file, which counts as damaged
        fd = disk.create(path, READABLE)
        try:
            disk.write(fd, draft.read_bytes())
        finally:
            os.close(fd)


def write_id(home: Path, run_id: str) -> None:
    """Gives `home` the id of our living run: somebody has deleted the directory and made it again.  OSError."""
    replace_file(id_file(home), _encode(run_id, home), mode=READABLE)


def can_write_id(home: Path) -> bool:
    """Not where the filesystem makes our files another user's, so that what we write there would not be believed."""
    with contextlib.suppress(OSError):
        return id_file(home).lstat().st_uid == os.geteuid()
    return True


def _encode(run_id: str, home: Path) -> bytes:
    there = home.stat()
    return seal(encode_json(IdFile(run_id, there.st_dev, there.st_ino))) + b"\n"
