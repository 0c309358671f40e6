"""The secret that all launches of a run on several machines have in a file of their own: its reading, and what may be its file.

Called by `procsv launch`.  The keys that follow from it are derived in ipc/messaging/curve_transport.py.  Its contents are in no message,
no environment and no other file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from procsv.base.errors import UserError
from procsv.base.system.data_file import NotAFile, open_data

VARIABLE = "PROCSV_SECRET_FILE"
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 32, 4096
MAKE_ONE = "make one with `head -c 32 /dev/urandom > FILE`, and give the same to all launches"
PROJECTED = "..data"  # what the files of a Kubernetes volume lie behind, so that all of them change at once
OTHERS = 0o077


def read_secret(path: Path) -> bytes:
    """The secret: random bytes as they are, text without the line end that an editor has left.  UserError says what is wrong."""
    try:
        fd = open_data(path, follows_links=True)
    except (NotAFile, IsADirectoryError) as error:
        raise UserError(f"--secret-file {path} is no file; {MAKE_ONE}") from error
    except OSError as error:
        hint = "" if not isinstance(error, PermissionError) else "; in a pod, set fsGroup, or a defaultMode of 0444"
        raise UserError(f"--secret-file {path} cannot be read: {error.strerror}{hint}") from error
    try:
        _check_mode(path, os.fstat(fd))
        secret = _without_line_end(os.read(fd, SECRET_BYTES_MAX + 1))
    finally:
        os.close(fd)
    if len(secret) < SECRET_BYTES_MIN:
        raise UserError(
            f"--secret-file {path} has {len(secret)} bytes, and a secret has {SECRET_BYTES_MIN} at least: {MAKE_ONE}"
        )
    if len(secret) > SECRET_BYTES_MAX:
        raise UserError(f"--secret-file {path} has more than {SECRET_BYTES_MAX} bytes, so it is no secret: {MAKE_ONE}")
    return secret


def _without_line_end(data: bytes) -> bytes:
    """One in 128 of those that are made of random bytes ends with a byte that would be a line end."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return data
    return data.rstrip(b"\r\n")


def _check_mode(path: Path, info: os.stat_result) -> None:
    """Of a file that is ours to change.  One of somebody else (root's, say) is as its owner wants it."""
    mode = stat.S_IMODE(info.st_mode)
    if info.st_uid != os.geteuid() or not mode & OTHERS or is_projected(path):
        return
    raise UserError(
        f"--secret-file {path} can be read by others (its mode is {mode:04o}), so it is no secret: `chmod 600 {path}` for it; "
        "in a pod, mount the Secret as a volume without subPath"
    )


def is_projected(path: Path) -> bool:
    """Whether it is in a volume that Kubernetes has made of a Secret: the modes there are the manifest's, for the pod alone to see."""
    try:
        return path.readlink().parts[0] == PROJECTED
    except OSError:
        return False
