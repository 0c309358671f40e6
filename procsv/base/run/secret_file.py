"""Read the secret file that every launch of a run on several machines has.

`procsv launch` uses it.  This module also checks the file's permissions.
ipc/messaging/curve_transport.py derives keys from the secret.  The secret appears in no message, no
environment and no other file.
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
PROJECTED = "..data"  # a link in a Kubernetes volume that leads to its files, so that all change at once
OTHERS = 0o077


def read_secret(path: Path) -> bytes:
    """Reads the secret: random bytes unchanged, text without an editor's line end.

    UserError says what is wrong.
    """
    try:
        fd = open_data(path, follows_links=True)
    except (NotAFile, IsADirectoryError) as error:
        raise UserError(f"--secret-file {path} is not a file; {MAKE_ONE}") from error
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
    """Removes a line end from text, but not from random bytes.

    One in 128 random secrets ends with such a byte.
    """
    try:
        data.decode()
    except UnicodeDecodeError:
        return data
    return data.rstrip(b"\r\n")


def _check_mode(path: Path, info: os.stat_result) -> None:
    """Raises UserError if others can read our file.

    The mode of another owner's file (root's, say) is that owner's choice.
    """
    mode = stat.S_IMODE(info.st_mode)
    if info.st_uid != os.geteuid() or not mode & OTHERS or is_projected(path):
        return
    raise UserError(
        f"--secret-file {path} can be read by others (its mode is {mode:04o}), so it is no secret: `chmod 600 {path}` for it; "
        "in a pod, mount the Secret as a volume without subPath"
    )


def is_projected(path: Path) -> bool:
    """Whether the file is in a volume that Kubernetes made from a Secret.

    The manifest sets the modes there, and only the pod sees the volume.
    """
    try:
        return path.readlink().parts[0] == PROJECTED
    except OSError:
        return False
