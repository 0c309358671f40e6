"""Define the table of contents of a snapshot slot, and how it maps to a TensorFlow checkpoint.

The trainer writes the table; the checkpoint service and the next trainer read it.  A slot describes
itself completely, including the plan for its checkpoints.  So even a service that has just started
can save the slot.
"""

from __future__ import annotations

import msgspec

from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan

TENSOR_ALIGNMENT_BYTES = 64  # TensorFlow uses aligned memory without copying it

# TensorFlow's number for each type whose bytes are the same in a file as in memory, and the size of one element.
DTYPES = {
    "float32": (1, 4),
    "float64": (2, 8),
    "int32": (3, 4),
    "uint8": (4, 1),
    "int16": (5, 2),
    "int8": (6, 1),
    "complex64": (8, 8),
    "int64": (9, 8),
    "bool": (10, 1),
    "qint8": (11, 1),
    "quint8": (12, 1),
    "qint32": (13, 4),
    "bfloat16": (14, 2),
    "qint16": (15, 2),
    "quint16": (16, 2),
    "uint16": (17, 2),
    "complex128": (18, 16),
    "float16": (19, 2),
    "uint32": (22, 4),
    "uint64": (23, 8),
    "float8_e5m2": (24, 1),
    "float8_e4m3fn": (25, 1),
    "int4": (29, 1),
    "uint4": (30, 1),
}
PACKED = frozenset({"string", "variant"})  # types whose elements are packed (pack_strings)


class TensorEntry(msgspec.Struct, frozen=True, array_like=True):
    """One tensor, or one slice of a partitioned one."""

    key: str
    slice: str  # shape_and_slice as SaveV2 takes it; "" for a whole tensor
    dtype: str  # TensorFlow's name: float32, bfloat16, string, qint8, …
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the slot's file; a multiple of TENSOR_ALIGNMENT_BYTES
    size: int  # bytes; for strings the size of the packed form (see pack_strings)
    hash: int  # xxh3_64 of these bytes, computed while the trainer copied them into the slot


class Contents(msgspec.Struct, frozen=True):
    """The table of contents of one snapshot."""

    plan: CheckpointPlan
    sharded: bool
    shards: tuple[tuple[TensorEntry, ...], ...]  # one for each data file, in the order of their numbers
    named_step: int  # the step in the checkpoint's name; -1 if there is none
    target: str  # the run's TARGET, for people
    logged: dict[str, int] = {}  # name of an event file of the program -> how many bytes belong to the state
    logged_s: float = 0.0  # when `logged` was read, in Unix seconds; 0: the lengths are unknown


def prefix_of(contents: Contents) -> str:
    """Returns the checkpoint's path, which TensorFlow calls its prefix."""
    return checkpoint_prefix(contents.plan, contents.named_step)


def checkpoint_prefix(plan: CheckpointPlan, named_step: int) -> str:
    if named_step < 0:
        return plan.save_path
    return f"{plan.save_path}-{named_step:08d}" if plan.pad_step_number else f"{plan.save_path}-{named_step}"


def pack_strings(values: list[bytes]) -> bytes:
    return msgspec.msgpack.encode(values)


def unpack_strings(data: bytes | memoryview) -> list[bytes]:
    return msgspec.msgpack.decode(data, type=list[bytes])


def align(offset: int) -> int:
    """Rounds `offset` up to the next offset where a tensor may begin."""
    return -(-offset // TENSOR_ALIGNMENT_BYTES) * TENSOR_ALIGNMENT_BYTES
