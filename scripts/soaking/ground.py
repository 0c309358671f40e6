"""Prepare the ground of a run under trouble: small disks of its own, if that is allowed, and a
clock that can be set.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

DISK_MIB, RUNTIME_MIB = 96, 8
FAKE_CLOCKS = "/usr/lib/*/faketime/libfaketimeMT.so.1"  # from Debian's package libfaketime


class Ground(msgspec.Struct, frozen=True):
    """The disks and the clock of a run."""

    base: Path  # all of it
    can_fill: bool  # its disks are its own

    @property
    def disk(self) -> Path:
        return self.base / "disk"

    @property
    def logdir(self) -> Path:
        return self.disk / "digits"

    @property
    def runtime(self) -> Path:
        return self.base / "runtime"

    @property
    def clock_file(self) -> Path:
        return self.base / "clock"

    def set_clock(self, offset: str) -> None:
        """Shift the time that the run's processes see by `offset` seconds."""
        self.clock_file.write_text(offset)

    def environment(self) -> dict[str, str]:
        found = {"XDG_RUNTIME_DIR": str(self.runtime)}
        if library := fake_clock():
            found |= {
                "LD_PRELOAD": library,
                "FAKETIME_TIMESTAMP_FILE": str(self.clock_file),
                "FAKETIME_CACHE_DURATION": "1",
            }
            found |= {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}
        return found


def fake_clock() -> str:
    """Return the library that shifts a program's clock; "" if this machine has none."""
    return next((str(path) for path in sorted(Path("/").glob(FAKE_CLOCKS[1:]))), "")


@contextlib.contextmanager
def prepared_ground(base: Path) -> Iterator[Ground]:
    """Prepare the ground under `base`, and remove its disks at the end."""
    plain = Ground(base, can_fill=False)
    base.mkdir(parents=True, exist_ok=True)
    plain.set_clock("+0")
    mounted: list[Path] = []
    try:
        for path, size in ((plain.disk, DISK_MIB), (plain.runtime, RUNTIME_MIB)):
            path.mkdir(mode=0o700)
            mounting = ["mount", "-t", "tmpfs", "-o", f"size={size}m,mode=0700", "tmpfs", str(path)]
            if subprocess.run(mounting, check=False, stderr=subprocess.DEVNULL).returncode == 0:
                mounted.append(path)
        yield Ground(base, can_fill=len(mounted) == 2)
    finally:
        for path in mounted:
            if subprocess.run(["umount", "-l", str(path)], check=False).returncode:
                print(f"scripts/soak: {path} is still mounted", file=sys.stderr)
