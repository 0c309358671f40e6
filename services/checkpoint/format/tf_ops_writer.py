"""Checkpoint files written and read back by TensorFlow's own ops, for what the bundle writer cannot write: the V1 formats,
and whatever is out of the ordinary.

The only file of the services that imports TensorFlow, and NumPy; the writer imports this one when it is first needed,
never at a start.  Called on the disk thread.  Knows nothing of where checkpoints go or how they are named.

Tensors are handed to TensorFlow as views of the slot's memory, without a copy.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import xxhash

from procsv.base.errors import PeerError
from procsv.ipc.shm.slot_index import Contents, Format, TensorEntry, unpack_strings
from procsv.services.checkpoint.core.facts import WriteMismatch

_loading = threading.Lock()
_tensorflow: Any = None
# quantized types travel through the integer type of the same width, bit for bit
_CARRIERS = {"qint8": "int8", "quint8": "uint8", "qint16": "int16", "quint16": "uint16", "qint32": "int32"}


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


def write(contents: Contents, memory: mmap.mmap, prefix: str, after_part: Callable[[str], None]) -> str:
    """Writes what Saver.save would have written for `prefix`; the path that it would have returned."""
    tf = load()
    count = len(contents.shards)
    with tf.device("/cpu:0"):
        if not contents.sharded:
            _put(tf, contents.format, prefix, contents.shards[0], memory)
            after_part(prefix)
            return prefix
        if contents.format == "v1":
            for number, shard in enumerate(contents.shards):
                _put(tf, contents.format, f"{prefix}-{number:05d}-of-{count:05d}", shard, memory)
                after_part(prefix)
            return f"{prefix}-?????-of-{count:05d}"
        parts = [f"{prefix}_temp/part-{number:05d}-of-{count:05d}" for number in range(count)]
        for part, shard in zip(parts, contents.shards, strict=True):
            _put(tf, contents.format, part, shard, memory)
            after_part(part)
        tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=prefix, delete_old_dirs=True)
    return prefix


def _put(tf: Any, format_: Format, name: str, shard: tuple[TensorEntry, ...], memory: mmap.mmap) -> None:
    keys = [entry.key for entry in shard]
    slices = [entry.slice for entry in shard]
    tensors = [_tensor(tf, entry, memory) for entry in shard]
    if format_ == "v2":
        tf.raw_ops.SaveV2(prefix=name, tensor_names=keys, shape_and_slices=slices, tensors=tensors)
    else:
        tf.raw_ops.SaveSlices(filename=name, tensor_names=keys, shapes_and_slices=slices, data=tensors)


def _tensor(tf: Any, entry: TensorEntry, memory: mmap.mmap) -> Any:
    if entry.dtype == "string":
        values = np.empty(math.prod(entry.shape), dtype=object)
        values[:] = unpack_strings(memory[entry.offset : entry.offset + entry.size])
        return tf.constant(values.reshape(entry.shape), dtype=tf.string, shape=entry.shape)
    if entry.dtype in _CARRIERS:
        return tf.bitcast(_array(np.dtype(_CARRIERS[entry.dtype]), entry, memory), tf.as_dtype(entry.dtype))
    return _array(np.dtype(tf.as_dtype(entry.dtype).as_numpy_dtype), entry, memory)


def _array(dtype: np.dtype[Any], entry: TensorEntry, memory: mmap.mmap) -> np.ndarray[Any, Any]:
    count = math.prod(entry.shape)
    if count * dtype.itemsize != entry.size:
        raise PeerError(f"{entry.key}: {count} elements of {entry.dtype} are not {entry.size} bytes")
    if count == 0:
        return np.empty(entry.shape, dtype)
    return np.frombuffer(memory, dtype, count, entry.offset).reshape(entry.shape)


def read_back(contents: Contents, memory: mmap.mmap, path: str) -> None:
    """Reads the written files and compares every tensor with the slot, one at a time; WriteMismatch if one differs."""
    for shard in contents.shards:
        for entry in shard:
            _compare(path, entry, memory)


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
