"""Find a checkpoint's files by their names.

The modules of the service that touch a checkpoint's files use it.  It never changes a file.

A checkpoint is named by its *path*, as TensorFlow's `checkpoint` file lists it: the prefix
`dir/model.ckpt-7` (V2 format, or one V1 file of that name), or `dir/model.ckpt-7-?????-of-00002`
(V1, sharded).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from procsv.base.run.manifest import MANIFEST_SUFFIX
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.services.checkpoint.core.facts import Signature

NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
META_SUFFIX = ".meta"
_V1_SHARDS = re.compile(r"-\?{5}-of-\d{5}$")
_STEP = re.compile(r"-(\d+)$")


def base_of(path: str) -> str:
    """Returns the prefix before `.meta` and the manifest's suffix."""
    return _V1_SHARDS.sub("", path)


def manifest_of(path: str) -> Path:
    return Path(base_of(path) + MANIFEST_SUFFIX)


def meta_of(path: str) -> Path:
    return Path(base_of(path) + META_SUFFIX)


def step_in_name(path: str) -> int:
    """Returns the step at the end of the name; -1 if there is none."""
    match = _STEP.search(base_of(path))
    return int(match[1]) if match else -1


def is_like(name: str, start: str, rest: re.Pattern[str]) -> bool:
    """Whether `name` is `start` followed by a match of `rest`."""
    return name.startswith(start) and rest.fullmatch(name, len(start)) is not None


def model_files(path: str) -> list[Path]:
    """Returns a checkpoint's existing files except `.meta` and manifest: data, then index."""
    if _V1_SHARDS.search(path):
        return _files_like(base_of(path), path[len(base_of(path)) :])
    data = _files_like(path, ".data-?????-of-?????")
    return data + [Path(p) for p in (path + ".index", path) if _is_file(p)]


def index_of(path: str) -> Path:
    """Returns a checkpoint's index, or its first file if it has no index.

    FileNotFoundError if it has no files.
    """
    index = Path(path + ".index")
    files = [index] if index.is_file() else model_files(path)
    if not files:
        raise FileNotFoundError(path)
    return files[0]


def _files_like(prefix: str, rest: str) -> list[Path]:
    """Returns the files named `prefix` + `rest`.

    Each ? in `rest` stands for any one character.
    """
    directory, start = os.path.split(prefix)
    size = len(start) + len(rest)
    with contextlib.suppress(OSError):
        there = sorted(os.listdir(directory or "."))  # noqa: PTH208  names are enough
        alike = [name for name in there if len(name) == size and name.startswith(start)]
        return [Path(directory, name) for name in alike if _is_as(name[len(start) :], rest)]
    return []


def _is_file(path: str) -> bool:
    """Like Path.is_file, but faster for many files.

    OSError if the answer is unknown.
    """
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116
    except OSError as error:
        if error.errno in NOT_THERE:
            return False
        raise
    except ValueError:  # no file can have this name
        return False


def _is_as(name: str, rest: str) -> bool:
    return all(wanted in ("?", given) for given, wanted in zip(name, rest, strict=True))


def all_files(path: str) -> list[Path]:
    """Returns all existing files of a checkpoint, the index first."""
    files = model_files(path)[::-1] + [p for p in (meta_of(path), manifest_of(path)) if p.is_file()]
    return sorted(files, key=lambda p: not p.name.endswith(".index"))


def signature_of(files: Iterable[Path]) -> Signature:
    """Returns a value that tells these files from others of the same names.

    FileNotFoundError if one has just been removed.
    """
    found = [(file.name, file.stat()) for file in files]
    return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in found)


def has_files(path: str) -> bool:
    """Whether TensorFlow would accept `path` as a checkpoint: it has an index, or is a V1 file."""
    if _V1_SHARDS.search(path):
        return bool(model_files(path))
    return _is_file(path + ".index") or _is_file(path)


def placing_order(names: list[str]) -> list[str]:
    """Sorts files into the order in which they are moved into place: data, index, meta."""
    return sorted(names, key=lambda n: (n.endswith(META_SUFFIX), n.endswith(".index"), n))


def absolute_save_path(plan: CheckpointPlan) -> str:
    return os.path.abspath(plan.save_path)  # noqa: PTH100  Path.resolve would replace links in it


def state_file_of(plan: CheckpointPlan) -> Path:
    return Path(absolute_save_path(plan)).parent / plan.latest_filename
