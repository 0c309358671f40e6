"""From a capture to a READY slot: copy each view, drop it at once, checksum on the way, publish.

Called by the snapshotter on its own thread, in the shadow of the training steps.  numpy copies and xxhash hashes
large memory without the GIL.  A kill anywhere here leaves a slot in WRITING: torn, never read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from procsv.ipc.arena import HEADER_BYTES, SlotInfo, SlotWriter
from procsv.ipc.contents import Contents, TensorEntry, align, pack_strings
from procsv.ipc.failpoints import declare, failpoint
from procsv.ipc.messages import SaverPlan
from procsv.training.capture import Capture, Taken, flat_bytes

CHUNK_BYTES = 1 << 20  # copied and hashed by turns, so that the hash reads what is still in the cache

declare("trainer.copy")


@dataclass(frozen=True, slots=True)
class _Filled:
    offset: int
    size: int
    shape: tuple[int, ...]
    hash: int


def fill_and_publish(
    writer: SlotWriter, capture: Capture, taken: Taken, plan: SaverPlan, sequence: int, named: bool, target: str
) -> SlotInfo:
    """Fills `writer`'s slot with `taken` and makes it READY.  NoRoom if it had to grow and could not."""
    failpoint("trainer.copy")
    late = {i: _bytes_of(taken.arrays[i]) for i in range(len(taken.arrays)) if _needs_place(capture, taken, i)}
    end = align(capture.end + sum(align(data.nbytes) for data in late.values()))
    writer.make_room(end - HEADER_BYTES)
    memory = np.frombuffer(writer.memory, np.uint8)
    filled, at = [], capture.end
    for i, array in enumerate(taken.arrays):
        if taken.copied[i]:
            offset, size = capture.offsets[i], capture.sizes[i] or 0
            filled.append(_Filled(offset, size, tuple(array), _hash(memory[offset : offset + size])))
            continue
        data, offset = (late[i], at) if i in late else (flat_bytes(array), capture.offsets[i])
        if i in late:
            at = align(at + data.nbytes)
        digest = _copy_and_hash(memory[offset : offset + data.nbytes], data)
        filled.append(_Filled(offset, data.nbytes, tuple(array.shape), digest))
        taken.arrays[i] = None  # dropped at once: the next update of this variable need not copy it
        del array, data
        late.pop(i, None)
    del memory  # the mapping may have to be replaced by a larger one
    return writer.publish(sequence, taken.step, _contents(capture, filled, plan, named, taken.step, target), end)


def _needs_place(capture: Capture, taken: Taken, i: int) -> bool:
    """Whether tensor `i` has no place in the static layout: a string, or not of the size that was expected."""
    if taken.copied[i]:
        return False
    array = taken.arrays[i]
    return array.dtype == object or capture.offsets[i] < 0 or array.nbytes != capture.sizes[i]


def _bytes_of(array: Any) -> Any:
    if array.dtype == object:
        return np.frombuffer(pack_strings([bytes(x) for x in array.reshape(-1).tolist()]), np.uint8)
    return flat_bytes(array)


def _copy_and_hash(target: Any, data: Any) -> int:
    hasher = xxhash.xxh3_64()
    for start in range(0, data.nbytes, CHUNK_BYTES):
        piece = target[start : start + CHUNK_BYTES]
        np.copyto(piece, data[start : start + CHUNK_BYTES])
        hasher.update(piece)
    return hasher.intdigest()


def _hash(data: Any) -> int:
    return xxhash.xxh3_64_intdigest(data)


def _contents(
    capture: Capture, filled: list[_Filled], plan: SaverPlan, named: bool, step: int, target: str
) -> Contents:
    shards = []
    for shard in capture.saved.shards:
        entries = []
        for item in shard:
            place = filled[capture.index[item.tensor.name]]
            entry = TensorEntry(item.key, item.slice, item.dtype, place.shape, place.offset, place.size, place.hash)
            entries.append(entry)
        shards.append(tuple(entries))
    return Contents(plan, capture.saved.op, capture.saved.sharded, tuple(shards), step if named else -1, target)
