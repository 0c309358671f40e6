"""`python -m procsv.services.checkpoint.tools.inventory DIR [--verify]`: print the checkpoints of a directory as JSON.

Run by `procsv checkpoints`.  Only reads: nothing is moved, listed anew or removed, whatever is found, so it may run
beside a live run.  Without `--verify` sizes are compared with the manifests; with it every byte is read.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import msgspec

from procsv.base.run.manifest import STATE_FILE, Manifest
from procsv.base.text import is_remote
from procsv.services.checkpoint.format.bundle_reader import BadBundle, check_structure, read_index, scalar_int
from procsv.services.checkpoint.store.catalog import GLOBAL_STEP_KEY, Catalog, listed_paths
from procsv.services.checkpoint.store.inventory import Inventory, Item, is_leftover, make_item
from procsv.services.checkpoint.store.manifest import BadCheckpoint, read_manifest
from procsv.services.checkpoint.store.names import all_files, has_files, manifest_of, step_in_name
from procsv.services.checkpoint.store.state_file import GarbledStateFile, read_state


def take_inventory(directory: Path, verify: bool) -> Inventory:
    """All checkpoints in `directory`; NotADirectoryError or FileNotFoundError if it is none."""
    entries = sorted(entry.name for entry in directory.iterdir())
    files = {name for name in entries if (directory / name).is_file()}
    trouble, latest, listed = None, "", set[str]()
    try:
        state = read_state(directory / STATE_FILE)
    except GarbledStateFile as error:
        trouble = str(error)
    else:
        if state is not None:
            latest, *others = [_beside(path, directory) for path in listed_paths(state, directory)]
            listed = {latest, *others}
    prefixes = {str(directory / name.removesuffix(".index")) for name in files if name.endswith(".index")} | listed
    catalog = Catalog()
    items = [_item(path, path in listed, path == latest, catalog, verify) for path in prefixes]
    rejected = [name for name in entries if ".rejected" in name and name not in files]
    return Inventory(
        directory=str(directory),
        checkpoints=sorted(items, key=lambda item: (item.step, item.time or 0.0, item.path)),
        rejected=[str(directory / name) for name in rejected],
        leftovers=[str(directory / name) for name in entries if is_leftover(name, {Path(p).name for p in prefixes})],
        error=trouble,
    )


def _beside(path: str, directory: Path) -> str:
    """Where a listed checkpoint is scanned for: in the directory that was asked about, which may be a copy."""
    beside = str(directory / Path(path).name)
    return beside if has_files(beside) or not has_files(path) else path


def _item(path: str, is_listed: bool, is_latest: bool, catalog: Catalog, verify: bool) -> Item:
    stats = []
    for file in all_files(path):
        with contextlib.suppress(FileNotFoundError):  # beside a live run: deleted just now
            stats.append(file.stat())
    size, newest = sum(stat.st_size for stat in stats), max((stat.st_mtime for stat in stats), default=None)
    manifest, error = None, None
    try:
        manifest = read_manifest(manifest_of(path))
        _look(path, manifest, catalog if verify else None)
    except (BadCheckpoint, BadBundle, OSError) as bad:
        error = str(bad)
    step = manifest.step if manifest else _step(path)
    return make_item(path, manifest, step, size, newest, is_listed, is_latest, verify, error)


def _step(path: str) -> int:
    """Of a checkpoint without manifest: its own global step, or what its name says."""
    with contextlib.suppress(BadBundle, OSError, ValueError):
        step = scalar_int(read_index(path), GLOBAL_STEP_KEY)
        if step is not None:
            return step
    return step_in_name(path)


def _look(path: str, manifest: Manifest | None, catalog: Catalog | None) -> None:
    """Raises what is wrong with a checkpoint, by sizes alone or by every byte."""
    if not has_files(path):
        raise BadCheckpoint("its files are gone")
    if catalog is not None:
        catalog.verify(path)
    elif manifest is None:
        check_structure(path)
    else:
        for name, expected in manifest.files.items():
            file = Path(path).parent / name
            if not file.is_file():
                raise BadCheckpoint(f"{name} is gone")
            if file.stat().st_size != expected.size:
                raise BadCheckpoint(f"{name} has {file.stat().st_size} bytes; its manifest says {expected.size}")


def main(argv: list[str]) -> int:
    """Prints the inventory; 0 also if something in it is wrong, 2 if there is no such directory."""
    verify = "--verify" in argv[1:]
    try:
        if is_remote(argv[0]):
            from procsv.services.checkpoint.remote.inventory import take_remote_inventory

            inventory: msgspec.Struct = take_remote_inventory(argv[0], verify)
        else:
            # Not resolved: shown as the user named it.
            inventory = take_inventory(Path(os.path.abspath(argv[0])), verify)  # noqa: PTH100
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        return 2
    sys.stdout.buffer.write(msgspec.json.encode(inventory) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
