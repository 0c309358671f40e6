"""`python -m procsv.services.checkpoint.tools.inventory DIR [--verify]`: print checkpoints as JSON.

`procsv checkpoints` runs it.  It only reads, and never moves, relists or removes anything, so it is
safe during a run.  It compares the files' sizes with the manifests.  With `--verify` it reads every
byte.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import msgspec

from procsv.base.encoding import encode_json
from procsv.base.location import is_remote
from procsv.base.run.manifest import STATE_FILE
from procsv.services.checkpoint.format.bundle_reader import Bundle, check_structure
from procsv.services.checkpoint.format.names import all_files, has_files, step_in_name
from procsv.services.checkpoint.store.catalog import Catalog, LocalListing, read_list, step_of
from procsv.services.checkpoint.store.inventory import CheckpointDirectory, Inventory


class _LocalPlace(LocalListing, CheckpointDirectory):
    def __init__(self, directory: Path) -> None:
        entries = sorted(entry.name for entry in directory.iterdir())
        listed, trouble, is_garbled = read_list(directory / STATE_FILE)
        beside = [_beside(path, str(directory)) for path in listed]
        super().__init__(str(directory), "", entries, beside, trouble, is_garbled)
        self._catalog = Catalog()

    def parts_of(self, path: str) -> dict[str, tuple[int, float]]:
        parts = {}
        for file in all_files(path):
            with contextlib.suppress(FileNotFoundError):  # a live run may have just deleted it
                stat = file.stat()
                parts[file.name] = (stat.st_size, stat.st_mtime)
        return parts

    def verify_checkpoint(self, path: str) -> int:
        return self._catalog.verify_checkpoint(path)

    def check_structure(self, path: str) -> Bundle:
        return check_structure(path)

    def step_of(self, path: str) -> int:
        return step_of(path, step_in_name(path))


def _beside(path: str, directory: str) -> str:
    """Returns the path of a listed checkpoint.

    A checkpoint of that name in `directory` is preferred: the directory may be a copy.
    """
    beside = f"{directory}/{Path(path).name}"
    return beside if has_files(beside) or not has_files(path) else path


def take_inventory(directory: Path, verify: bool) -> Inventory:
    """Lists all checkpoints in `directory`.

    NotADirectoryError or FileNotFoundError if it is not a directory.
    """
    place = _LocalPlace(directory)
    files = {name for name in place.names if (directory / name).is_file()}
    paths = {str(directory / name.removesuffix(".index")) for name in files if name.endswith(".index")}
    rejected = [name for name in place.names if ".rejected" in name and name not in files]
    return place.take_inventory(paths.union(place.listed), rejected, verify)


def main(argv: list[str]) -> int:
    """Prints the inventory.

    Returns 0 even if a checkpoint is bad, and 2 if the directory cannot be read.
    """
    verify = "--verify" in argv[1:]
    try:
        if is_remote(argv[0]):
            from procsv.services.checkpoint.remote.catalog import take_remote_inventory

            inventory: msgspec.Struct = take_remote_inventory(argv[0], verify)
        else:
            # Do not resolve it, so that the output shows the path as the user wrote it.
            inventory = take_inventory(Path(os.path.abspath(argv[0])), verify)  # noqa: PTH100
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        return 2
    sys.stdout.buffer.write(encode_json(inventory) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
