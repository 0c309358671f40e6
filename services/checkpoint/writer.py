"""TensorFlow's checkpoint files from the tensors in a slot, and their read-back.

The only file of the services that imports TensorFlow; it does so when it is first asked to, never at import.
Called by the store, on the disk thread, and once by the thread that loads TensorFlow in the background.  Knows
nothing of where checkpoints go or how they are named.

Tensors are handed to TensorFlow as views of the slot's memory, without a copy.
"""

from __future__ import annotations

import contextlib
import glob
import mmap
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from procsv.ipc.contents import Contents, TensorEntry, unpack_strings
from procsv.ipc.errors import PeerError
from procsv.ipc.failpoints import declare, failpoint
from procsv.services.checkpoint.bundle import BadBundle, Bundle, check_structure

declare("checkpoint.mid_write")

_loading = threading.Lock()
_tensorflow: Any = None
# quantized types travel through the integer type of the same width, bit for bit
_CARRIERS = {"qint8": "int8", "quint8": "uint8", "qint16": "int16", "quint16": "uint16", "qint32": "int32"}


class WriteMismatch(Exception):
    """What was written is not what lies in the slot.  The text names the tensor."""


def load() -> Any:
    """TensorFlow, imported once, without the accelerators: those belong to the trainer."""
    global _tensorflow
    with _loading:
        if _tensorflow is None:
            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
            import tensorflow

            with contextlib.suppress(RuntimeError):  # already in use, by whoever shares this process
                tensorflow.config.threading.set_inter_op_parallelism_threads(1)
                tensorflow.config.threading.set_intra_op_parallelism_threads(1)
            _tensorflow = tensorflow
    return _tensorflow


def warm_up(directory: Path) -> None:
    """Loads TensorFlow and saves a tiny checkpoint in `directory`, so that the first real one is not late."""
    tf = load()
    prefix = str(directory / f".warm_up.{os.getpid()}")
    try:
        with tf.device("/cpu:0"):
            tf.raw_ops.SaveV2(
                prefix=prefix, tensor_names=["x"], shape_and_slices=[""], tensors=[np.zeros(1, np.float32)]
            )
    finally:
        for path in glob.glob(glob.escape(prefix) + ".*"):  # noqa: PTH207  glob.escape knows no Path
            Path(path).unlink(missing_ok=True)


def write(contents: Contents, memory: mmap.mmap, prefix: str) -> str:
    """Writes what Saver.save would have written for `prefix`; the path that it would have returned."""
    tf = load()
    count = len(contents.shards)
    with tf.device("/cpu:0"):
        if not contents.sharded:
            _put(tf, contents.save_op, prefix, contents.shards[0], memory)
            _break_in_the_middle(prefix)
            return prefix
        if contents.save_op != "SaveV2":
            for number, shard in enumerate(contents.shards):
                _put(tf, contents.save_op, f"{prefix}-{number:05d}-of-{count:05d}", shard, memory)
                _break_in_the_middle(prefix)
            return f"{prefix}-?????-of-{count:05d}"
        parts = [f"{prefix}_temp/part-{number:05d}-of-{count:05d}" for number in range(count)]
        for part, shard in zip(parts, contents.shards, strict=True):
            _put(tf, contents.save_op, part, shard, memory)
            _break_in_the_middle(part)
        tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=prefix, delete_old_dirs=True)
    return prefix


def _break_in_the_middle(prefix: str) -> None:
    if failpoint("checkpoint.mid_write"):  # torn: half of what was written is missing
        for path in glob.glob(glob.escape(prefix) + ".data-*"):  # noqa: PTH207
            os.truncate(path, Path(path).stat().st_size // 2)


def _put(tf: Any, op: str, name: str, shard: tuple[TensorEntry, ...], memory: mmap.mmap) -> None:
    keys = [entry.key for entry in shard]
    slices = [entry.slice for entry in shard]
    tensors = [_tensor(tf, entry, memory) for entry in shard]
    match op:
        case "SaveV2":
            tf.raw_ops.SaveV2(prefix=name, tensor_names=keys, shape_and_slices=slices, tensors=tensors)
        case "SaveSlices":
            tf.raw_ops.SaveSlices(filename=name, tensor_names=keys, shapes_and_slices=slices, data=tensors)
        case _:
            tf.raw_ops.Save(filename=name, tensor_names=keys, data=tensors)


def _tensor(tf: Any, entry: TensorEntry, memory: mmap.mmap) -> Any:
    if entry.dtype == "string":
        values = np.empty(_elements(entry), dtype=object)
        values[:] = unpack_strings(memory[entry.offset : entry.offset + entry.size])
        return tf.constant(values.reshape(entry.shape), dtype=tf.string, shape=entry.shape)
    if entry.dtype in _CARRIERS:
        return tf.bitcast(_array(np.dtype(_CARRIERS[entry.dtype]), entry, memory), tf.as_dtype(entry.dtype))
    return _array(np.dtype(tf.as_dtype(entry.dtype).as_numpy_dtype), entry, memory)


def _array(dtype: np.dtype[Any], entry: TensorEntry, memory: mmap.mmap) -> np.ndarray[Any, Any]:
    count = _elements(entry)
    if count * dtype.itemsize != entry.size:
        raise PeerError(f"{entry.key}: {count} elements of {entry.dtype} are not {entry.size} bytes")
    if count == 0:
        return np.empty(entry.shape, dtype)
    return np.frombuffer(memory, dtype, count, entry.offset).reshape(entry.shape)


def _elements(entry: TensorEntry) -> int:
    count = 1
    for size in entry.shape:
        count *= size
    return count


def read_back(contents: Contents, memory: mmap.mmap, path: str) -> None:
    """Reads the written files and compares every tensor with the slot; WriteMismatch if one differs.

    A whole tensor in the V2 format lies in its file as in memory: its bytes must give the hash that was taken when
    the slot was filled, which checks the slot's copy, too.  Strings, slices and V1 files are read by TensorFlow, one
    tensor at a time.
    """
    bundle = None
    if contents.save_op == "SaveV2":
        try:
            bundle = check_structure(path)
        except BadBundle as error:
            raise WriteMismatch(str(error)) from error
    maps: dict[int, mmap.mmap] = {}
    try:
        for shard in contents.shards:
            for entry in shard:
                if bundle is None or not _is_the_same_in_file(bundle, maps, entry):
                    _compare(path, entry, memory)
    finally:
        for opened in maps.values():
            opened.close()


def _is_the_same_in_file(bundle: Bundle, maps: dict[int, mmap.mmap], entry: TensorEntry) -> bool:
    """False if it takes TensorFlow to tell."""
    listed = bundle.entries.get(entry.key.encode())
    if listed is None:
        raise WriteMismatch(f"{entry.key} is not in the index")
    if entry.dtype == "string" or listed.is_sliced or listed.size != entry.size:
        return False
    if entry.size == 0:
        return True
    if listed.shard not in maps:
        with bundle.data_file(listed.shard).open("rb") as file:
            maps[listed.shard] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with memoryview(maps[listed.shard]) as view:
        if xxhash.xxh3_64_intdigest(view[listed.offset : listed.offset + listed.size]) != entry.hash:
            raise WriteMismatch(f"{entry.key} does not match the checksum that was taken in the trainer")
    return True


def _compare(path: str, entry: TensorEntry, memory: mmap.mmap) -> None:
    tf = load()
    there = memory[entry.offset : entry.offset + entry.size]
    if xxhash.xxh3_64_intdigest(there) != entry.hash:
        raise WriteMismatch(f"{entry.key} does not match the checksum that was taken in the trainer")
    with tf.device("/cpu:0"):
        dtype = tf.as_dtype(entry.dtype)
        (tensor,) = tf.raw_ops.RestoreV2(
            prefix=path, tensor_names=[entry.key], shape_and_slices=[entry.slice], dtypes=[dtype]
        )
        if entry.dtype in _CARRIERS:
            tensor = tf.bitcast(tensor, tf.as_dtype(_CARRIERS[entry.dtype]))
    value = tensor.numpy()
    if entry.dtype == "string":
        read: list[bytes] = [bytes(v) for v in np.asarray(value, dtype=object).reshape(-1).tolist()]
        same = read == unpack_strings(there)
    else:
        same = np.ascontiguousarray(value).tobytes() == there
    if not same or tuple(tensor.shape) != entry.shape:
        raise WriteMismatch(f"{entry.key} was read back with another value")
