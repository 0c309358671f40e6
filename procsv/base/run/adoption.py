"""Link a run with the logdir that its program has named.

`procsv launch` without --logdir begins in `runs/<target>`, the run's own directory.  If the program
names another directory, the run adopts that directory as its logdir.  Checkpoints and events are
there, and the run's own files stay in its own directory.

run.json in the run's own directory names the logdir, and a pointer in `<logdir>/procsv` leads back.
The link counts only if both agree, so a directory that was copied or recreated is not linked.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from procsv.base.encoding import decode_sealed, encode_json, seal
from procsv.base.run.paths import find_paths, local_home
from procsv.base.run.records import record_mode
from procsv.base.run.run_file import RunFile, find_run_in
from procsv.base.system.atomic_file import replace_file
from procsv.base.system.data_file import read_data

POINTER_BYTES_MAX = 2**14


class Pointer(msgspec.Struct, frozen=True):
    """The contents of pointer.json."""

    # The run's own directory, relative to the logdir, because they may be moved together.
    root: Annotated[str, msgspec.Meta(pattern=r"^[^\x00]+$")]


def pointer_of(logdir: Path) -> Path:
    return logdir / "procsv" / "pointer.json"


def write_pointer(logdir: Path, root: Path, replace: Callable[..., None] = replace_file) -> None:
    """Writes the pointer from `logdir` to the run in `root`, unless it exists.

    `replace`: the function that replaces the file.  OSError passes through.
    """
    pointer = Pointer(os.path.relpath(root, logdir))
    if _read_pointer(logdir) != pointer:
        path = pointer_of(logdir)
        replace(path, seal(encode_json(pointer)) + b"\n", mode=record_mode(path.parent))


def remove_pointer(logdir: Path) -> None:
    """Removes the pointer: `logdir` is a run's own directory from now on."""
    with contextlib.suppress(OSError):
        pointer_of(logdir).unlink()


def root_of(logdir: str | os.PathLike[str]) -> Path | None:
    """Returns the own directory of the run that has adopted `logdir`.

    None if no run has adopted it.
    """
    real = local_home(os.fspath(logdir))
    pointer = _read_pointer(real)
    if pointer is None:
        return None
    root = Path(os.path.realpath(real / pointer.root))
    run = None if root == real else find_run_in(find_paths(root))
    return root if run is not None and run.checkpoint_dir == real else None


def adopted_logdir(run: RunFile | None) -> Path | None:
    """Returns the logdir that `run` has adopted, if the logdir still leads back to the run.

    None if `run` has adopted none, or the two no longer agree.
    """
    if run is None or not run.root or not _is_ours(run.paths.run_json):
        return None
    logdir = run.checkpoint_dir
    return logdir if root_of(logdir) == run.paths.logdir else None


def _is_ours(path: Path) -> bool:
    """Whether the file is ours; otherwise another user could choose where our checkpoints go."""
    with contextlib.suppress(OSError):
        return path.lstat().st_uid == os.getuid()
    return False


def _read_pointer(logdir: Path) -> Pointer | None:
    try:
        return decode_sealed(read_data(pointer_of(logdir), POINTER_BYTES_MAX), Pointer)
    except (OSError, msgspec.DecodeError):
        return None
