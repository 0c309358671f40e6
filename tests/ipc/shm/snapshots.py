"""Snapshots made of bytes for the slot tests, without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import xxhash

from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.ipc.shm.slot_file import SlotPool, SlotWriter
from procsv.ipc.shm.slot_header import HEADER_BYTES
from procsv.ipc.shm.slot_index import Contents, TensorEntry, align
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.ipc.shm.slot_state import SlotInfo

PLAN = CheckpointPlan("/l/model.ckpt", "checkpoint", 600.0, 5, 10000.0, False, False, "")
RUN = "0123456789abcdef"
STATE_AT = 16  # the offset of the state in a slot's header


def fill(writer: SlotWriter, tensors: Mapping[str, bytes]) -> tuple[Contents, int]:
    """Copy `tensors` into the slot. Return the arguments for `publish`."""
    at, entries = HEADER_BYTES, []
    for key, data in tensors.items():
        at = align(at)
        writer.memory[at : at + len(data)] = data
        entries.append(TensorEntry(key, "", "uint8", (len(data),), at, len(data), xxhash.xxh3_64_intdigest(data)))
        at += len(data)
    return Contents(PLAN, False, (tuple(entries),), 1, "train.py"), at


def publish(writer: SlotWriter, sequence: int, tensors: Mapping[str, bytes], step: int | None = None) -> SlotInfo:
    contents, end = fill(writer, tensors)
    return writer.publish_slot(sequence, sequence * 10 if step is None else step, contents, end)


def snapshot(pool: SlotPool, sequence: int, data: bytes = b"weights") -> SlotInfo:
    writer = pool.begin_snapshot()
    assert writer is not None
    return publish(writer, sequence, {"w": data})


def tensors_in(reader: SlotReader) -> dict[str, bytes]:
    entries = [entry for shard in reader.contents.shards for entry in shard]
    return {entry.key: bytes(reader.map[entry.offset : entry.offset + entry.size]) for entry in entries}


def read(info: SlotInfo) -> dict[str, bytes]:
    """Return the verified tensors of a slot."""
    reader = SlotReader(info)
    try:
        reader.verify_slot()
        return tensors_in(reader)
    finally:
        reader.close()


def flip(path: Path, at: int, mask: int = 0xFF) -> None:
    """Damage one byte of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ mask]))
