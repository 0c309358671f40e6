"""Keep the states at the ends of a program's newest fits.

Used by fit.py.  After a crash in a later fit the program comes to the earlier ones again: each is brought to its end from here.  A state is a
checkpoint's files under the key of its fit, linked, so that retention leaves them alone.  All states together take as much room as a few
checkpoints; older ones are removed, and those fits are trained again if the program comes to them.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import tensorflow as tf

from procsv.base.system import disk
from procsv.training.runtime.log import log

CHECKPOINTS_MAX = 4  # of the newest one's size; then the oldest state goes
SMALL_BYTES = 16 << 20  # less room than this is nobody's trouble

_DATA = ".data-00000-of-00001"
_NAME = re.compile(r"fit-(\d+)-([0-9a-f-]+)\.index")  # the step of its end, and its key


class EndedFits:
    """Those of one program, in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, key: str) -> str | None:
        """The checkpoint of the end of the fit with this key, all of which can be read."""
        found = [path for _, known, path in self._list() if known == key]
        if not found:
            return None
        path = str(found[-1])
        try:
            reader = tf.train.load_checkpoint(path)
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
        except (tf.errors.OpError, ValueError, LookupError, RuntimeError, OSError) as error:
            log.warning("procsv: the state at the end of a fit, %s, cannot be read: %s", path, error)
            return None
        return path

    def keep(self, key: str, step: int, checkpoint: str) -> int:
        """Keeps the files of `checkpoint`, which is on disk, and removes the oldest states that are too many; how many those were.

        Killed in here: there is no index, or all is there.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        for suffix in (_DATA, ".index"):
            new = self._directory / f".new{suffix}"
            new.unlink(missing_ok=True)
            try:
                os.link(checkpoint + suffix, new)
            except OSError:  # a filesystem without links
                shutil.copyfile(checkpoint + suffix, new)
                disk.fsync_path(new)
            disk.rename(new, self._directory / f"fit-{step:012d}-{key}{suffix}")
        removed = self._remove_oldest()
        disk.fsync_path(self._directory)
        return removed

    def _remove_oldest(self) -> int:
        states = [(path, _size_of(path)) for _, _, path in self._list()]
        room = max(SMALL_BYTES, CHECKPOINTS_MAX * states[-1][1])
        removed = 0
        while sum(size for _, size in states) > room:
            path, _ = states.pop(0)
            Path(f"{path}.index").unlink(
                missing_ok=True
            )  # killed here: data without an index, which the next call removes
            removed += 1
        named = {f"{path.name}{_DATA}" for path, _ in states}
        for data in self._directory.glob(f"fit-*{_DATA}"):
            if data.name not in named:
                data.unlink(missing_ok=True)
        return removed

    def _list(self) -> list[tuple[int, str, Path]]:
        """Step, key and path of each, the oldest first."""
        names = [(match, path) for path in self._directory.glob("fit-*.index") if (match := _NAME.fullmatch(path.name))]
        return sorted((int(match[1]), match[2], path.with_suffix("")) for match, path in names)


def _size_of(path: Path) -> int:
    return sum(
        Path(f"{path}{suffix}").stat().st_size for suffix in (_DATA, ".index") if Path(f"{path}{suffix}").exists()
    )
