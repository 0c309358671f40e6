"""The `checkpoint` file, read and written as TensorFlow does, without TensorFlow.

Called by the store.  Its text is a CheckpointState proto; the message type is built here from its four fields,
so that the bytes are those of protobuf's own text format.  Never decides what is kept.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
)

from procsv.base.system.atomic_file import replace_file


@dataclass(frozen=True, slots=True)
class StateFile:
    """What a `checkpoint` file says; paths as they are written there."""

    latest: str
    all_paths: tuple[str, ...]  # oldest first


class GarbledStateFile(Exception):
    """There is a `checkpoint` file, and it cannot be read.  The text says why."""


def _message_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="procsv/checkpoint_state.proto", package="procsv", syntax="proto3")
    message = file.message_type.add(name="CheckpointState")
    field = descriptor_pb2.FieldDescriptorProto
    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    message.field.add(name="model_checkpoint_path", number=1, label=one, type=field.TYPE_STRING)
    message.field.add(name="all_model_checkpoint_paths", number=2, label=many, type=field.TYPE_STRING)
    message.field.add(name="all_model_checkpoint_timestamps", number=3, label=many, type=field.TYPE_DOUBLE)
    message.field.add(name="last_preserved_timestamp", number=4, label=one, type=field.TYPE_DOUBLE)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("procsv.CheckpointState"))


_CheckpointState = _message_class()


def read_state(path: Path) -> StateFile | None:
    """The `checkpoint` file at `path`, None if there is none; GarbledStateFile if it makes no sense."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise GarbledStateFile(f"{path} cannot be read: {error.strerror}") from error
    return parse_state(text, str(path))


def parse_state(text: bytes, path: str) -> StateFile:
    """What the bytes of the `checkpoint` file at `path` say; GarbledStateFile if they make no sense."""
    state = _CheckpointState()
    try:
        text_format.Merge(text.decode(), state)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise GarbledStateFile(f"{path} is garbled: {error}") from error
    if not state.model_checkpoint_path:
        raise GarbledStateFile(f"{path} names no checkpoint")
    return StateFile(state.model_checkpoint_path, tuple(state.all_model_checkpoint_paths))


def state_text(save_path: str, all_paths: list[str], relative: bool) -> bytes:
    """The text for absolute `all_paths` (oldest first), as Saver.save(save_path) would write it.

    Paths are relative to the directory if that is asked for, or if `save_path` is itself relative.
    """
    if relative or not Path(save_path).is_absolute():
        directory = os.path.dirname(os.path.abspath(save_path))  # noqa: PTH100, PTH120  spelling as the user's
        all_paths = [os.path.relpath(path, directory) for path in all_paths]
    return state_of_names(all_paths)


def state_of_names(all_paths: list[str]) -> bytes:
    """The text for paths that are listed as they are, oldest first."""
    state = _CheckpointState(model_checkpoint_path=all_paths[-1], all_model_checkpoint_paths=all_paths)
    text: str = text_format.MessageToString(state)
    return text.encode()


def write_state(path: Path, save_path: str, all_paths: list[str], relative: bool) -> None:
    """Replaces the `checkpoint` file.  Killed in between: the old one stands."""
    replace_file(path, state_text(save_path, all_paths, relative))
