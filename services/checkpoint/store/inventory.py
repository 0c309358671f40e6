"""List a directory's checkpoints, and the files that belong to no checkpoint.

tools/inventory.py uses it for a local directory, and remote/catalog.py for a URL. It only reads,
so it is safe during a run.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable

import msgspec

from procsv.base.run.manifest import Manifest
from procsv.services.checkpoint.format.bundle_reader import BadBundle
from procsv.services.checkpoint.format.manifest import BadCheckpoint
from procsv.services.checkpoint.format.names import base_of, step_in_name
from procsv.services.checkpoint.store.search import Listing


class Item(msgspec.Struct, kw_only=True):
    """One checkpoint. `time` is in Unix seconds. `step` is -1 if unknown."""

    path: str
    step: int
    bytes: int
    time: float | None  # None if none of its files is left
    reason: str | None  # None: there is no readable manifest
    incarnation: int | None
    listed: bool  # in the `checkpoint` file
    latest: bool  # what TensorFlow would restore
    verified: bool  # every byte was read and is correct
    error: str | None  # what is wrong with it


class Inventory(msgspec.Struct, kw_only=True):
    directory: str
    checkpoints: list[Item]  # oldest step first
    rejected: list[str]  # directories of checkpoints that were moved aside
    leftovers: list[str]  # files of no checkpoint: a save is under way, or a save or deletion was interrupted
    error: str | None  # what is wrong with the `checkpoint` file


class CheckpointDirectory(Listing):
    """A checkpoint directory that the inventory can read. Any method may raise OSError."""

    @abstractmethod
    def parts_of(self, path: str) -> dict[str, tuple[int, float]]:
        """Return the existing files of a checkpoint.

        The result maps a name to its size in bytes and its time of change in Unix seconds.
        """

    @abstractmethod
    def verify_checkpoint(self, path: str) -> int:
        """Raise BadCheckpoint if a byte is wrong."""

    def check_structure(self, path: str) -> object:
        """Raise BadBundle if a checkpoint without a manifest looks incomplete.

        This does not read all of it.
        """
        return None

    def step_of(self, path: str) -> int:
        """Return the step of a checkpoint without a manifest, or -1 if unknown."""
        return step_in_name(path)

    def take_inventory(self, paths: Iterable[str], rejected: Iterable[str], verify: bool) -> Inventory:
        """Return the inventory of the checkpoints `paths`.

        `verify`: check every byte, not only sizes.
        """
        known = {base_of(path.rpartition("/")[2]) for path in paths}
        return Inventory(
            directory=self.directory,
            checkpoints=sorted(
                (self._item(path, verify) for path in paths), key=lambda item: (item.step, item.time or 0.0, item.path)
            ),
            rejected=[f"{self.directory}/{name}" for name in rejected],
            leftovers=[f"{self.directory}/{name}" for name in self.names if _is_leftover(name, known)],
            error=self.trouble or None,
        )

    def _item(self, path: str, verify: bool) -> Item:
        parts, manifest, error = dict[str, tuple[int, float]](), None, None
        try:
            parts = self.parts_of(path)
            manifest = self.manifest_of(path)
            if verify:
                self.verify_checkpoint(path)
            else:
                self._check_sizes(path, manifest, parts)
        except (BadCheckpoint, BadBundle) as bad:
            error = str(bad)
        except OSError as trouble:
            error = f"it cannot be read: {trouble.strerror}"
        size, newest = sum(size for size, _ in parts.values()), max((time for _, time in parts.values()), default=None)
        return Item(
            path=path,
            step=manifest.step if manifest else self.step_of(path),
            bytes=manifest.bytes if manifest else size,
            time=manifest.time if manifest else newest,
            reason=manifest.reason if manifest else None,
            incarnation=manifest.incarnation if manifest else None,
            listed=path in self.listed,
            latest=path in self.listed[:1],
            verified=verify and error is None,
            error=error,
        )

    def _check_sizes(self, path: str, manifest: Manifest | None, parts: dict[str, tuple[int, float]]) -> None:
        if not self.is_there(path):
            raise BadCheckpoint("its files are gone")
        if manifest is None:
            self.check_structure(path)
            return
        for name, expected in manifest.files.items():
            if name not in parts:
                raise BadCheckpoint(f"{name} is gone")
            if (size := parts[name][0]) != expected.size:
                raise BadCheckpoint(f"{name} has {size} bytes; its manifest says {expected.size}")


_PARTS = re.compile(r"(.*?)(-\d{5}-of-\d{5}|\.(data-\d{5}-of-\d{5}|meta|manifest\.json))$")
_IN_THE_MAKING = re.compile(r"\.tempstate\d+$|_temp$|-of-\d{5}\.tmp$")


def _is_leftover(name: str, bases: set[str]) -> bool:
    """Whether a file belongs to no checkpoint.

    Either its writer has not finished it, or its index is missing and no list names its checkpoint.
    """
    part = _PARTS.fullmatch(name)
    return bool(_IN_THE_MAKING.search(name)) or (part is not None and part[1] not in bases)
