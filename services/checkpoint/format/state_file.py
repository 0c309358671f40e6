"""Read and write the `checkpoint` file as TensorFlow does, without TensorFlow.

Its text is a CheckpointState proto.  This module never decides which checkpoints are kept.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import msgspec
from google.protobuf import text_format  # type: ignore[import-untyped]

from procsv.base.location import is_utf8
from procsv.base.system import stale
from procsv.base.system.atomic_file import replace_file
from procsv.base.system.data_file import read_data
from procsv.services.checkpoint.format.manifest import written
from procsv.services.checkpoint.format.protos import CheckpointState

# `last_preserved_timestamp` is this long before the oldest checkpoint.  When a CheckpointManager starts, it adopts only
# checkpoints that are newer than this timestamp.
PRESERVED_BEFORE_S = 1.0


class StateFile(msgspec.Struct, frozen=True):
    """The contents of a `checkpoint` file, with the paths as written there."""

    latest: str
    all_paths: tuple[str, ...]  # oldest first


class GarbledStateFile(Exception):
    """A `checkpoint` file that makes no sense.  The text says why."""


def read_state(path: Path) -> StateFile | None:
    """Reads the `checkpoint` file at `path`.

    None if there is none, GarbledStateFile if it makes no sense.
    """
    try:
        text = stale.try_again(lambda: read_data(path, follows_links=True))
    except FileNotFoundError:
        return None
    return parse_state(text, str(path))


@functools.lru_cache(maxsize=8)  # one file is read many times before it is written again
def parse_state(text: bytes, path: str) -> StateFile:
    """Parses the bytes of the `checkpoint` file at `path`.

    GarbledStateFile if they make no sense.
    """
    state = CheckpointState()
    try:
        text_format.Merge(text.decode(), state)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise GarbledStateFile(f"{path} is garbled: {error}") from error
    if not state.model_checkpoint_path:
        raise GarbledStateFile(f"{path} names no checkpoint")
    return StateFile(state.model_checkpoint_path, tuple(state.all_model_checkpoint_paths))


def state_text(save_path: str, all_paths: list[str], relative: bool, times: list[float] | None = None) -> bytes:
    """Returns the text that Saver.save(save_path) would write.

    `all_paths` are absolute, oldest first.  The text has them relative to the directory in three
    cases: `relative` is set, `save_path` is relative, or `save_path` is not valid UTF-8.  (The file
    can hold only UTF-8.)  `times` are the Unix seconds of each path.  With them, the text is the
    text of a tf.train.CheckpointManager.  Without them, a manager would forget the checkpoints and
    never delete one.
    """
    if relative or not Path(save_path).is_absolute() or not is_utf8(save_path):
        directory = os.path.dirname(os.path.abspath(save_path))  # noqa: PTH100, PTH120  resolve would replace links
        all_paths = [os.path.relpath(path, directory) for path in all_paths]
    return state_of_names(all_paths, times)


def state_of_names(all_paths: list[str], times: list[float] | None = None) -> bytes:
    """Returns the text that lists the paths unchanged, oldest first."""
    state = CheckpointState(model_checkpoint_path=all_paths[-1], all_model_checkpoint_paths=all_paths)
    if times:
        state.all_model_checkpoint_timestamps.extend(times)
        state.last_preserved_timestamp = min(times) - PRESERVED_BEFORE_S
    text: str = text_format.MessageToString(state)
    return text.encode()


def list_text(save_path: str, all_paths: list[str], relative: bool, lists_times: bool) -> bytes:
    """Like `state_text`, with the times at which the checkpoints were written if `lists_times`."""
    times = [written(listed) for listed in all_paths] if lists_times else None
    return state_text(save_path, all_paths, relative, times)


def write_state(path: Path, save_path: str, all_paths: list[str], relative: bool, lists_times: bool = False) -> None:
    """Replaces the `checkpoint` file.  Killed in between: the old file is still there."""
    replace_file(path, list_text(save_path, all_paths, relative, lists_times))
