"""Write checkpoint files from a slot's tensors with TensorFlow's own ops, as the reference for the
bundle writer.
"""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
import tensorflow as tf

from procsv.base.errors import PeerError
from procsv.ipc.shm.slot_index import Contents, TensorEntry, unpack_strings

# quantized types are written through the integer type of the same width, bit for bit
_CARRIERS = {"qint8": "int8", "quint8": "uint8", "qint16": "int16", "quint16": "uint16", "qint32": "int32"}


def write(contents: Contents, memory: mmap.mmap, prefix: str) -> None:
    """Write what Saver.save would have written for `prefix`."""
    with tf.device("/cpu:0"):
        if not contents.sharded:
            _put(prefix, contents.shards[0], memory)
            return
        count = len(contents.shards)
        parts = [f"{prefix}_temp/part-{number:05d}-of-{count:05d}" for number in range(count)]
        for part, shard in zip(parts, contents.shards, strict=True):
            _put(part, shard, memory)
        tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=prefix, delete_old_dirs=True)


def _put(name: str, shard: tuple[TensorEntry, ...], memory: mmap.mmap) -> None:
    keys = [entry.key for entry in shard]
    slices = [entry.slice for entry in shard]
    tensors = [_tensor(entry, memory) for entry in shard]
    tf.raw_ops.SaveV2(prefix=name, tensor_names=keys, shape_and_slices=slices, tensors=tensors)


def _tensor(entry: TensorEntry, memory: mmap.mmap) -> Any:
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
