"""Object graph: the entries of the checkpoint that tf.train.Checkpoint would write, and where their values come from.

Built by an EagerState, once, and again when something was attached to one of the objects: that takes milliseconds, and
reads no variable.  Keys and order are TensorFlow's own, so that the files are the same, byte for byte.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf

from procsv.ipc.messaging.messages import CheckpointPlan
from procsv.training.eager import private
from procsv.training.snapshots.slot_layout import lay_out
from procsv.training.snapshots.source import Entry, StateSpec

READ_MAX = 100  # variables by one call


class Cannot(Exception):
    """TensorFlow's own saving has to be used.  The text says why."""


class Tracked(msgspec.Struct, frozen=True):
    """One entry of the checkpoint, and the object it belongs to."""

    key: str
    slice: str
    dtype: str
    owner: Any  # the trackable
    variable: Any  # the tf.Variable that holds the value; None: the owner serializes it


class ObjectGraph:
    """What a tf.train.Checkpoint tracks now."""

    def __init__(self, checkpoint: Any) -> None:
        """Cannot, if only TensorFlow itself can save it."""
        view = private.view_graph(checkpoint)
        if view is None:
            raise Cannot(f"procsv does not know how TensorFlow {tf.__version__} lists what a Checkpoint tracks")
        self._nodes = [(node, private.children_of(node)) for node in view.breadth_first_traversal()[0]]
        serialized, _, registered, proto = private.serialize_graph_view(view)
        if registered:
            raise Cannot(f"it has savers of its own: {', '.join(sorted(registered))}")
        self.tracked = [
            _track(owner, key, spec, value)
            for owner, values in serialized.items()
            for key, given in values.items()
            for spec, value in (given.items() if isinstance(given, dict) else (("", given),))
        ]
        self.proto = proto
        self._proto_bytes = proto.SerializeToString()
        self.variables = [
            (number, item.variable) for number, item in enumerate(self.tracked) if item.variable is not None
        ]
        self.others = [number for number, item in enumerate(self.tracked) if item.variable is None]

    def is_current(self) -> bool:
        """Whether nothing was attached or taken away since."""
        for node, before in self._nodes:
            now = private.children_of(node)
            if len(now) != len(before) or not all(map(operator.is_, now, before)):
                return False
        return True

    def spec(self, plan: CheckpointPlan) -> StateSpec:
        sizes: list[int | None] = [_size_of(item.variable) for item in self.tracked]
        entries = [Entry(item.key, item.slice, item.dtype, number) for number, item in enumerate(self.tracked)]
        entries.append(Entry(private.GRAPH_KEY, "", "string", len(sizes)))
        sizes.append(None)
        layout = lay_out(sizes, [list(range(len(sizes)))])
        return StateSpec(plan, "v2", False, (tuple(entries),), sizes, layout, has_step=True)

    def values_of_others(self) -> dict[int, Any]:
        """The values, by number, of what is no variable; the owners serialize them, so on the training thread."""
        found, values = dict[int, Any](), dict[int, Any]()
        for number in self.others:
            item = self.tracked[number]
            if id(item.owner) not in found:
                found[id(item.owner)] = item.owner._serialize_to_tensors()
            values[number] = _array_of(_pick(found[id(item.owner)], item))
        return values

    def graph_array(self) -> Any:
        return _strings([self._proto_bytes])


def _track(owner: Any, key: str, spec: str, value: Any) -> Tracked:
    variable = None if spec else _variable_of(owner)
    return Tracked(key, spec, (value if variable is None else variable).dtype.base_dtype.name, owner, variable)


def _pick(serialized: Any, item: Tracked) -> Any:
    """The tensor of `item` among all that its owner has serialized now."""
    value = serialized[item.key] if item.key in serialized else serialized[private.extract_local_name(item.key)]
    if item.slice:
        value = value[item.slice]
    value = value() if callable(value) else value
    return value if isinstance(value, tf.Tensor) else value.tensor


def _variable_of(owner: Any) -> Any:
    """The resource variable that a trackable is, or wraps as Keras' does; None if it is something else."""
    for candidate in (owner, getattr(owner, "value", None)):
        if isinstance(candidate, private.resource_variable):
            return candidate
    return None


def _size_of(variable: Any) -> int | None:
    """Bytes; None: not known beforehand."""
    if variable is None or variable.dtype == tf.string or not variable.shape.is_fully_defined():
        return None
    return int(variable.shape.num_elements()) * int(variable.dtype.base_dtype.size)


def _array_of(tensor: Any) -> Any:
    """What the slot holds of a tensor: its memory, or its elements' bytes."""
    if tensor.dtype == tf.variant:
        return variants_of(tensor)
    return view_of(tensor)


def view_of(tensor: Any) -> Any:
    """A view of a tensor's memory, of a type that Python's buffers know (bfloat16 is none of them)."""
    array = np.asarray(private.view_tensor(tensor))
    if tensor.dtype == tf.string:
        return array.astype(object)
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")


def variants_of(tensor: Any) -> Any:
    """The elements of a variant tensor (an iterator's state), each as its VariantTensorDataProto."""
    proto = _tensor_proto()
    proto.ParseFromString(tf.io.serialize_tensor(tensor).numpy())
    packed = [value.SerializeToString() for value in proto.variant_val]
    if not packed and proto.tensor_content:
        packed = list(_lengths_first(proto.tensor_content, int(np.prod(tensor.shape.as_list(), dtype=int))))
    return _strings(packed).reshape(tensor.shape.as_list())


def variant_tensor(values: list[bytes], shape: tuple[int, ...]) -> Any:
    """The variant tensor of such elements."""
    proto = _tensor_proto()
    proto.dtype = tf.variant.as_datatype_enum
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    for value in values:
        proto.variant_val.add().ParseFromString(value)
    return tf.io.parse_tensor(proto.SerializeToString(), tf.variant)


def _tensor_proto() -> Any:
    return type(tf.make_tensor_proto(0))()


def _lengths_first(content: bytes, count: int) -> Iterator[bytes]:
    """The parts of a packed tensor: all lengths as varints, then all bytes."""
    sizes, at = list[int](), 0
    for _ in range(count):
        size = shift = 0
        while True:
            byte = content[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        sizes.append(size)
    for size in sizes:
        yield content[at : at + size]
        at += size


def _strings(values: list[bytes]) -> Any:
    """An array of objects; of one value, a scalar."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(()) if len(values) == 1 else array
