"""Give a run what a container gets under Pod Security "restricted", without a container runtime.

A run `within=restricted(…)` has a read-only root with its interpreter, this source tree and the
given mounts. It runs as an ordinary user without capabilities and cannot gain any. It needs root.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path

EMPTY_DIR = "emptyDir"
SYSTEM = ("bin", "dev", "etc", "lib", "lib64", "proc", "sbin", "sys", "usr")
CLONE_NEWNS = 0x20000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
PR_SET_NO_NEW_PRIVS = 38


def restricted(root: Path, user: int, directory: str, mounts: Mapping[str, Path | str]) -> tuple[str, ...]:
    """Return surroundings with that root, user (and group), working directory and mounts: each a
    directory or EMPTY_DIR.

    `root` is an empty directory; the run alone sees its root there. Mount points below SYSTEM must
    already exist.
    """
    return (__file__, "confine", str(root), str(user), directory, *(f"{at}={what}" for at, what in mounts.items()))


def confine(root: str, user: str, directory: str, *mounts: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source: str, target: Path, kind: str = "", flags: int = 0, data: str = "") -> None:
        target.mkdir(parents=True, exist_ok=True)
        if libc.mount(source.encode(), os.fsencode(target), kind.encode(), flags, data.encode()):
            raise OSError(ctypes.get_errno(), f"{target}: {os.strerror(ctypes.get_errno())}")

    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    mount("none", Path("/"), flags=MS_REC | MS_PRIVATE)
    base = Path(root)
    mount("tmpfs", base, "tmpfs", data="mode=0755")
    for name in SYSTEM:
        if (there := Path("/", name)).is_symlink():
            (base / name).symlink_to(there.readlink())
        elif there.is_dir():
            mount(str(there), base / name, flags=MS_BIND | MS_REC)
    for tree in (str(Path(__file__).parents[2]), sys.prefix, sys.base_prefix):
        mount(tree, base / tree[1:], flags=MS_BIND)
    for at, what in (one.split("=", 1) for one in mounts):
        if what == EMPTY_DIR:
            mount("tmpfs", base / at[1:], "tmpfs", data=f"mode=2777,gid={user}")
        else:
            mount(what, base / at[1:], flags=MS_BIND)
    mount("none", base, flags=MS_REMOUNT | MS_BIND | MS_RDONLY)
    os.chroot(root)
    os.chdir(directory)
    os.setgroups([int(user)])
    os.setresgid(*[int(user)] * 3)
    os.setresuid(*[int(user)] * 3)  # this drops all capabilities
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
