"""Number the fits of a process, know one that is called again after an exception, and keep the states at the ends of the newest.

Asked by backup.py when a fit begins.  Fits are numbered in their order, for each directory.  A fit that an exception has ended keeps its
number: the program may call it again, and it goes on where it was.  After a crash in a later fit the program comes to the earlier ones
again: each is brought to its end from what is kept.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import tensorflow as tf

from procsv.base.location import lasting_path
from procsv.base.system import disk
from procsv.training.keras import private
from procsv.training.runtime.log import log

BEGUN_MAX = 10_000  # starts of fits that are known: of an older one no end is known, either
ENDED_MAX = 1000  # of the fits that ended before, no more are known again


class FitKind(msgspec.Struct, frozen=True):
    """What tells a fit from another one before there are variables."""

    name: str  # the directory that the program names
    layers: list[str]
    optimizer: str
    data: list[int | None]
    weights: list[tuple[tuple[int | None, ...], str]] | None  # None: the model is not built yet

    def is_same(self, other: FitKind) -> bool:
        """Whether both may be of one fit: an unbuilt model may come to be either."""
        return msgspec.structs.replace(self, weights=None) == msgspec.structs.replace(other, weights=None) and (
            None in (self.weights, other.weights) or self.weights == other.weights
        )


def kind_of(name: str, model: Any, data: list[int | None]) -> FitKind:
    """`data`: the shape of its position; the number of epochs may be another one at each call."""
    weights = [(tuple(w.shape), str(w.dtype)) for w in model.weights] if private.is_built(model) else None
    return FitKind(name, private.layer_kinds(model), type(model.optimizer).__qualname__, data, weights)


class Series:
    """The fits of one directory, in this process."""

    def __init__(self) -> None:
        self.number = 0  # of the newest fit
        self.is_again = False  # it was begun before, and has raised
        self.keys: list[str] = []  # of its calls
        self.ended: list[str] = []  # keys of the fits that had ended, in earlier attempts too
        self.has_removed = False  # the end of one, to keep within bounds
        self._open: FitKind | None = None  # of the newest fit, until it has ended
        self._begun: dict[str, int] = {}  # how many fits have begun from each start, the newest last

    def begin_fit(self, kind: FitKind | None) -> None:
        """A fit begins.  `kind` None: the program never calls it again."""
        before, self._open = self._open, kind
        self.is_again = before is not None and kind is not None and kind.is_same(before)
        if self.is_again:
            return
        if before is not None and kind is not None and kind.name == before.name:
            log.warning("procsv: this fit begins anew: it is not the fit that an exception has ended")
        self.number += 1
        self.keys = []

    def add_key(self, key: str) -> str:
        """Gives the newest fit its key.  A fit that is made again from the same start is another one, and has another key."""
        count = self._begun.pop(key, 0) + (not self.is_again)
        self._begun[key] = count
        if len(self._begun) > BEGUN_MAX:
            del self._begun[next(iter(self._begun))]
        key = key if count <= 1 else f"{key}-{count}"
        if key not in self.keys:
            self.keys.append(key)
        return key

    def end_fit(self) -> None:
        """The newest fit has ended, and no exception has ended it."""
        self._open = None
        self.ended = [*(key for key in self.ended if key not in self.keys), *self.keys][-ENDED_MAX:]


class FitNumbers:
    """The series of this process, by the directory in which the states are."""

    def __init__(self) -> None:
        self._series: dict[str, Series] = {}

    def begin_fit(self, directory: str, kind: FitKind | None) -> Series:
        """The series in which a fit begins."""
        series = self._series.setdefault(directory, Series())
        series.begin_fit(kind)
        return series


CHECKPOINTS_MAX = 4  # of the newest one's size; then the oldest state goes
SMALL_BYTES = 16 << 20  # less room than this is nobody's trouble

_DATA = ".data-00000-of-00001"
_NAME = re.compile(r"fit-(\d+)-([0-9a-f-]+)\.index")  # the step of its end, and its key


class EndedFits:
    """The ends of the fits of one program, in `directory`.

    A state is a checkpoint's files under the key of its fit, linked, so that retention leaves them alone.  All states together take as
    much room as a few checkpoints; older ones are removed, and those fits are trained again if the program comes to them.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find_end(self, key: str) -> str | None:
        """The checkpoint of the end of the fit with this key, all of which can be read."""
        found = [path for _, known, path in self._list() if known == key]
        if not found:
            return None
        path = lasting_path(str(found[-1]))
        try:
            reader = tf.train.load_checkpoint(path)
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
        except (tf.errors.OpError, ValueError, LookupError, RuntimeError, OSError) as error:
            log.warning("procsv: the state at the end of a fit, %s, cannot be read: %s", path, error)
            return None
        return path

    def keep_end(self, key: str, step: int, checkpoint: str) -> int:
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
