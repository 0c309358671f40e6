"""Read and write a commit's intent: everything that another process needs to finish the commit.

The commit (commit.py) writes the intent into its staging directory once all files there are
complete. A logdir may be moved or copied before the commit is finished, so paths inside the
checkpoint's directory are stored relative to it. An intent for a directory outside the logdir is
valid only where it was made.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from procsv.base.encoding import decode_sealed, encode_json, seal
from procsv.base.run.manifest import Manifest
from procsv.base.system.atomic_file import replace_file
from procsv.base.system.data_file import read_data

INTENT = "intent.json"


class Intent(msgspec.Struct, frozen=True):
    """A commit, with absolute paths to where its files are now."""

    path: str  # of the checkpoint, as the `checkpoint` file will list it
    manifest: Manifest
    state_file: str
    save_path: str  # from the plan; decides whether listed paths are relative
    relative: bool  # from the plan: list relative paths in any case
    listed: tuple[str, ...]  # the new list in the `checkpoint` file, oldest first; includes `path`
    delete: tuple[str, ...]  # older checkpoints to delete once this one is in place
    state_before: str | None  # the `checkpoint` file before the commit, for an undo; None if there is none
    replaces: bool  # a checkpoint of this name exists and is set aside before any file is placed
    lists_times: bool = False  # from the plan

    @property
    def directory(self) -> Path:
        return Path(self.path).parent


class _File(msgspec.Struct, frozen=True):
    """An intent as it is stored."""

    staging: str  # where it was made
    directory: str  # the checkpoint's directory; relative to `staging` if it contains `staging`, otherwise absolute
    intent: Intent  # with paths relative to `directory` for files in it


def write_intent(staging: Path, intent: Intent) -> None:
    """Write the intent.

    Killed here: there is no intent, and the next start sweeps the staging directory.
    """
    directory = str(intent.directory)
    is_within = staging.is_relative_to(directory)
    where = os.path.relpath(directory, staging) if is_within else directory
    file = _File(str(staging), where, _with_paths(intent, lambda path: _shorten(path, directory)))
    replace_file(staging / INTENT, seal(encode_json(file)))


def read_intent(staging: Path) -> Intent | None:
    """Read the intent of a commit.

    Return None if there is no intent, or if it is damaged. Also return None if it is for a directory
    outside the logdir and was made elsewhere, or if it would place a file that is not its
    checkpoint's. OSError if it cannot be read now.
    """
    try:
        file = decode_sealed(read_data(staging / INTENT), _File)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    is_at_home = file.staging == str(staging)
    if not is_at_home and Path(file.directory).is_absolute():
        return None
    directory = os.path.normpath(staging / file.directory)
    intent = _with_paths(file.intent, lambda path: os.path.normpath(Path(directory, path)))
    if not _is_plain(intent, directory):
        return None
    intent = msgspec.structs.replace(intent, delete=tuple(p for p in intent.delete if _is_in(p, directory)))
    if is_at_home:
        return intent
    # The directory was moved or copied, so files elsewhere belong to somebody else.
    listed = tuple(path for path in intent.listed if _is_in(path, directory))
    save_path = intent.save_path
    if Path(save_path).is_absolute():
        save_path = f"{directory}/{Path(save_path).name}"
    return msgspec.structs.replace(intent, listed=listed, save_path=save_path)


def _is_plain(intent: Intent, directory: str) -> bool:
    """Whether the intent places only files of its own checkpoint, and a list in its directory."""
    base = intent.path.rpartition("/")[2]
    names = [name == base or (name.startswith(f"{base}.") and "/" not in name) for name in intent.manifest.files]
    return all(names) and _is_in(intent.path, directory) and _is_in(intent.state_file, directory)


def _with_paths(intent: Intent, change: Callable[[str], str]) -> Intent:
    return msgspec.structs.replace(
        intent,
        path=change(intent.path),
        state_file=change(intent.state_file),
        listed=tuple(map(change, intent.listed)),
        delete=tuple(map(change, intent.delete)),
    )


def _is_in(path: str, directory: str) -> bool:
    return path.rpartition("/")[0] == directory


def _shorten(path: str, directory: str) -> str:
    return path.rpartition("/")[2] if _is_in(path, directory) else path
