"""Find and verify the checkpoints in a directory, and move bad ones aside.

The store calls it on the disk thread. It never deletes anything. It never trusts a name: it
verifies each checkpoint file by file.
"""

from __future__ import annotations

import contextlib
import functools
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from procsv.base.run.manifest import Manifest
from procsv.base.system import disk
from procsv.base.system.data_file import open_stream
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.services.checkpoint.core.facts import Signature
from procsv.services.checkpoint.format import names
from procsv.services.checkpoint.format.bundle_reader import (
    BadBundle,
    check_contents,
    check_structure,
    read_index,
    scalar_int,
)
from procsv.services.checkpoint.format.manifest import BadCheckpoint, is_of, read_manifest, verify_files
from procsv.services.checkpoint.format.state_file import GarbledStateFile, StateFile, read_state, write_state
from procsv.services.checkpoint.store.search import Listing

GLOBAL_STEP_KEY = "global_step"
_TABLE_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)


class LocalListing(Listing):
    def __init__(
        self,
        directory: str,
        basename: str,
        names: Sequence[str],
        listed: Sequence[str],
        trouble: str,
        is_garbled: bool,
        catalog: Catalog | None = None,
    ) -> None:
        """`catalog`: remembers which checkpoints were verified before."""
        super().__init__(directory, basename, names, listed, trouble, is_garbled)
        self._catalog = catalog or Catalog()

    def is_there(self, path: str) -> bool:
        return names.has_files(path)

    def manifest_of(self, path: str) -> Manifest | None:
        return read_manifest(names.manifest_of(path))

    def verify_checkpoint(self, path: str) -> int:
        return self._catalog.verify_checkpoint(path)

    def move_aside(self, path: str) -> None:
        files = names.all_files(path)
        if not files or os.path.realpath(Path(path).parent) != os.path.realpath(self.directory):
            return  # a copied list may name files elsewhere, and another run may be writing them
        base = Path(names.base_of(path))
        target = base.with_name(base.name + ".rejected")
        number = 2
        while target.exists():
            target = base.with_name(f"{base.name}.rejected.{number}")
            number += 1
        disk.mkdir(target)
        for file in files:
            disk.rename(file, target / file.name)

    def write_list(self, plan: CheckpointPlan, paths: tuple[str, ...]) -> None:
        state_file = names.state_file_of(plan)
        write_state(state_file, plan.save_path, list(paths), plan.save_relative_paths, plan.lists_times)


def list_checkpoints(plan: CheckpointPlan, catalog: Catalog | None = None) -> LocalListing:
    """List the checkpoints by their names and manifests, without reading a tensor."""
    save_path, there = Path(names.absolute_save_path(plan)), list[str]()
    with contextlib.suppress(FileNotFoundError):
        there = os.listdir(save_path.parent)  # noqa: PTH208  names are enough
    state = read_list(names.state_file_of(plan))
    return LocalListing(str(save_path.parent), save_path.name, there, *state, catalog)


def read_list(state_path: Path) -> tuple[list[str], str, bool]:
    """Read a `checkpoint` file.

    Return its paths, the latest first; what is wrong with it, or ""; and whether it is garbled.
    """
    try:
        state = read_state(state_path)
    except GarbledStateFile as error:
        return [], str(error), True
    except OSError as error:
        return [], f"{state_path} cannot be read: {error.strerror}", False
    return (listed_paths(state, state_path.parent) if state else []), "", False


def listed_paths(state: StateFile, directory: Path) -> list[str]:
    """Return the paths in a `checkpoint` file, the latest first, each at its present location."""
    order = [state.latest] + [path for path in reversed(state.all_paths) if path != state.latest]
    # List each path once: TensorFlow's Saver lists another writer's checkpoint in two spellings.
    found: dict[tuple[str, str], str] = {}
    resolve = functools.cache(os.path.realpath)
    here = resolve(str(directory))
    for path in order:
        absolute = os.path.join(directory, path)  # noqa: PTH118  keeps the spelling of an absolute path
        meant = Path(absolute)
        parent, name = resolve(str(meant.parent)), meant.name
        # A moved or copied logdir still lists its old paths. Use the files here and leave the originals alone.
        if parent != here and names.has_files(str(beside := directory / Path(path).name)):
            absolute, parent, name = str(beside), here, beside.name
        found.setdefault((parent, name), absolute)
    return list(found.values())


class Catalog:
    """Verifies checkpoints; verifies a checkpoint again only if its files have changed."""

    def __init__(self) -> None:
        self._good: dict[str, Signature] = {}

    def verify_checkpoint(self, path: str) -> int:
        """Verify a checkpoint as Listing.verify_checkpoint (search.py) describes."""
        try:
            manifest = read_manifest(names.manifest_of(path))
        except BadCheckpoint:
            if _is_of(None, path):
                raise
            manifest = None
        if not names.has_files(path):
            raise BadCheckpoint("its files are gone")
        if manifest is None:
            return verify_foreign(path)
        signature = names.signature_of(names.all_files(path))
        if self._good.get(path) != signature:
            try:
                verify_files(manifest, Path(path).parent)
            except BadCheckpoint:
                if manifest.index is not None and _is_of(manifest, path):
                    raise
                # Another save may have replaced the files. If so, the manifest is void: use the files' own checksums.
                return verify_foreign(path)
            self._good[path] = signature
        return manifest.step

    def trust(self, path: str) -> None:
        """Remember that a checkpoint is good: the caller has just written or verified it."""
        self._good[path] = names.signature_of(names.all_files(path))

    def forget_checkpoints(self, paths: Iterable[str]) -> None:
        """Forget deleted checkpoints: a run of weeks deletes many."""
        for path in paths:
            self._good.pop(path, None)


def _is_of(manifest: Manifest | None, path: str) -> bool:
    """Like `is_of`, but True if a file is gone.

    If another save had replaced the checkpoint, the file would be there.
    """
    try:
        return is_of(manifest, path)
    except FileNotFoundError:
        return True


def verify_foreign(path: str) -> int:
    """Verify a checkpoint without a manifest by its own checksums. Return its step.

    Such a checkpoint is TensorFlow's or the user's.
    """
    if not Path(path + ".index").is_file():
        _verify_v1(path)
        return names.step_in_name(path)
    try:
        bundle = check_structure(path)
        check_contents(bundle)
    except BadBundle as error:
        raise BadCheckpoint(str(error)) from error
    step = scalar_int(bundle, GLOBAL_STEP_KEY)
    return names.step_in_name(path) if step is None else step


def step_of(path: str, otherwise: int) -> int:
    """Return the global step stored in the checkpoint.

    Return `otherwise` if it holds none or cannot be read.
    """
    with contextlib.suppress(BadBundle, OSError, ValueError):
        step = scalar_int(read_index(path), GLOBAL_STEP_KEY)
        return otherwise if step is None else step
    return otherwise


def _verify_v1(path: str) -> None:
    files = names.model_files(path)
    expected = int(path[-5:]) if path != names.base_of(path) else 1
    if len(files) != expected:
        raise BadCheckpoint(f"{len(files)} of its {expected} files are there")
    for file in files:
        with open_stream(file, follows_links=True) as opened:
            opened.seek(-min(8, file.stat().st_size), os.SEEK_END)
            if opened.read() != _TABLE_MAGIC:
                raise BadCheckpoint(f"{file.name} is not a whole checkpoint file")
