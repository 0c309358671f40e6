"""A minimal second state source: NumPy arrays that are updated in place. It imports no TensorFlow."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.ipc.shm.slot_index import Contents, TensorEntry
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.services.checkpoint.format.bundle_reader import check_structure
from procsv.services.checkpoint.format.bundle_writer import BundleWriter, plan_bundle
from procsv.training.snapshots.boundary import Boundary
from procsv.training.snapshots.slot_fill import SlotCopy, flat_bytes
from procsv.training.snapshots.slot_layout import lay_out
from procsv.training.snapshots.source import CannotRestore, Captured, CheckpointEntry, StateSource, StateSpec

EVALUATION = "evaluation"  # the subject of a call that changes no state
STEP = "global_step"


def numpy_plan(logdir: Path, **changes: Any) -> CheckpointPlan:
    fields: dict[str, Any] = {
        "save_path": str(logdir / "model.ckpt"),
        "latest_filename": "checkpoint",
        "save_secs": 600.0,
        "max_to_keep": 5,
        "keep_every_n_hours": 10_000.0,
        "pad_step_number": False,
        "save_relative_paths": False,
        "meta_path": "",
    }
    return CheckpointPlan(**(fields | changes))


class NumpyState(StateSource):
    """Saves `arrays` by name, among them the int64 scalar "global_step". It copies everything at the boundary."""

    errors: tuple[type[Exception], ...] = ()

    def __init__(self, arrays: dict[str, Any], plan: CheckpointPlan) -> None:
        self.arrays = arrays
        sizes: list[int | None] = [array.nbytes for array in arrays.values()]
        layout = lay_out(sizes, [list(range(len(sizes)))])
        entries = tuple(CheckpointEntry(key, "", array.dtype.name, i) for i, (key, array) in enumerate(arrays.items()))
        self.spec: StateSpec | None = StateSpec(plan, False, (entries,), sizes, layout, has_step=True)
        self._plan, self._layout = plan, layout
        self._copy = SlotCopy(layout, sizes, [False] * len(sizes))
        self._boundary: Boundary | None = None

    def attach(self, boundary: Boundary) -> None:
        self._boundary = boundary

    def read_step(self) -> int:
        return int(self.arrays[STEP])

    def warm_up(self) -> None: ...

    def capture(self, into: mmap.mmap | None) -> Captured:
        assert into is not None
        arrays = list(self.arrays.values())
        return Captured(arrays, self._copy.copy(arrays, into), self.read_step())

    def restore(self, state: SlotReader | str) -> None:
        found = _in_checkpoint(state) if isinstance(state, str) else _in_slot(state)
        for key, array in self.arrays.items():
            if len(found.get(key, b"")) != array.nbytes:
                raise CannotRestore(f"there is no {key} of {array.nbytes} bytes")
        for key, array in self.arrays.items():
            array[...] = np.frombuffer(found[key], array.dtype).reshape(array.shape)

    def may_change(self) -> bool:
        return self._boundary is None or self._boundary.about != EVALUATION

    def save_to(self, directory: Path, step: int) -> str:
        memory, entries = mmap.mmap(-1, self._layout.end), list[TensorEntry]()
        for key, array in self.arrays.items():
            offset = self._layout.offsets[len(entries)]
            memory[offset : offset + array.nbytes] = data = flat_bytes(array).tobytes()
            place = (array.shape, offset, array.nbytes, xxhash.xxh3_64_intdigest(data))
            entries.append(TensorEntry(key, "", array.dtype.name, *place))
        prefix = f"{directory / Path(self._plan.save_path).name}-{step}"
        contents = Contents(self._plan, False, (tuple(entries),), step, "")
        bundle = BundleWriter(plan_bundle(contents), memory, prefix)
        bundle.write_shard(0)
        bundle.write_index()
        return prefix

    def close(self) -> None: ...


def _in_slot(reader: SlotReader) -> dict[str, bytes]:
    entries = [entry for shard in reader.contents.shards for entry in shard]
    return {entry.key: reader.map[entry.offset : entry.offset + entry.size] for entry in entries}


def _in_checkpoint(path: str) -> dict[str, bytes]:
    bundle = check_structure(path)
    data = bundle.data_file(0).read_bytes()
    return {key.decode(): data[entry.offset : entry.offset + entry.size] for key, entry in bundle.entries.items()}
