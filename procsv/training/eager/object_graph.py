"""List what a tf.train.Checkpoint would write: the entries, and where their values come from.

An EagerState builds an ObjectGraph when it starts. It builds another one when the program has
attached something to a tracked object, or removed something from one. That takes milliseconds and
reads no variable.
Keys and order are TensorFlow's own, so the files equal TensorFlow's, byte for byte.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf

from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.ipc.shm.slot_index import DTYPES, PACKED
from procsv.training.eager import private
from procsv.training.snapshots.slot_layout import lay_out
from procsv.training.snapshots.source import CheckpointEntry, StateSpec

READ_MAX = 100  # variables that state.py reads by one call of TensorFlow


class CannotCapture(Exception):
    """procsv cannot capture what a Checkpoint tracks; only TensorFlow can save it.

    The message says why.
    """


class Tracked(msgspec.Struct, frozen=True):
    """One entry of the checkpoint, and the object that it belongs to."""

    key: str
    slice: str  # shape_and_slice for SaveV2; "" for a whole tensor
    dtype: str  # TensorFlow's name
    owner: Any  # the trackable
    variable: Any  # the tf.Variable that holds the value; None if the owner serializes it
    copies: tuple[Any, ...] = ()  # the same variable on the other replicas
    is_own: bool = False  # the value of this task's replicas only; other tasks have values of their own


class PerReplica(msgspec.Struct, frozen=True):
    """A strategy's variable with a value on each replica. TensorFlow's checkpoint has one value."""

    key: str
    dtype: str
    first: int  # number of the first replica in `variables`
    variables: tuple[Any, ...]  # one for each replica from `first` on
    numbers: range  # the values' numbers in a snapshot: after all tracked values and the object graph
    like: int | None  # number of the first replica's value, if TensorFlow saves this one; None: it saves a combination

    @property
    def replicas(self) -> list[int]:
        return list(range(self.first, self.first + len(self.variables)))


class ObjectGraph:
    """What a tf.train.Checkpoint tracks now."""

    def __init__(self, checkpoint: Any) -> None:
        """Read the objects. Raise CannotCapture if only TensorFlow itself can save them."""
        view = private.view_graph(checkpoint)
        if view is None:
            raise CannotCapture(f"procsv does not know how TensorFlow {tf.__version__} lists what a Checkpoint tracks")
        self._nodes = [(node, private.children_of(node)) for node in view.breadth_first_traversal()[0]]
        serialized, _, registered, proto = private.serialize_graph_view(view)
        if registered:
            raise CannotCapture(f"it has savers of its own: {', '.join(sorted(registered))}")
        self.tracked = [
            _track(owner, key, spec, value)
            for owner, values in serialized.items()
            for key, given in values.items()
            for spec, value in (given.items() if isinstance(given, dict) else (("", given),))
        ]
        if others := [item for item in self.tracked if item.dtype not in DTYPES and item.dtype not in PACKED]:
            raise CannotCapture(f"{others[0].key} is of type {others[0].dtype}, which TensorFlow alone can save")
        self._proto_bytes = proto.SerializeToString()
        self.variables = [
            (number, item.variable) for number, item in enumerate(self.tracked) if item.variable is not None
        ]
        self.per_replica = list(self._list_per_replica())
        # `apart`: keys of the variables whose values may differ between tasks, to warn of. `own`: entries whose value
        # procsv has to give to this task's replicas after a restore. `others`: numbers of the entries that are not in
        # variables.
        of_many = [item for item in self.tracked if private.is_of_many_tasks(_saved(item.owner))]
        in_optimizers = private.variables_of_optimizers([node for node, _ in self._nodes]) if of_many else frozenset()
        self.apart = [item.key for item in of_many if private.is_apart(_saved(item.owner), in_optimizers)]
        self.own = [item for item in self.tracked if item.variable is not None and item.is_own]
        self.others = [number for number, item in enumerate(self.tracked) if item.variable is None]
        owners: dict[int, list[int]] = {}
        for number in self.others:
            owners.setdefault(id(self.tracked[number].owner), []).append(number)
        self._serializers = [(n, _serializer_of([self.tracked[number] for number in n])) for n in owners.values()]

    def _list_per_replica(self) -> Iterator[PerReplica]:
        """List the variables with several replicas, if all of these are in this task.

        A task cannot read the replicas of another task.
        """
        at = len(self.tracked) + 1  # after the object graph
        for number, item in enumerate(self.tracked):
            saved = _saved(item.owner)
            if item.slice or private.is_of_many_tasks(saved):
                continue
            components = private.components_of(saved)
            # If TensorFlow saves the first replica's value, only the other replicas are listed. If it saves a
            # combination, all replicas are.
            first = 0 if item.variable is None else 1
            if len(components) > 1:
                variables = tuple(components[first:])
                numbers = range(at, at + len(variables))
                yield PerReplica(
                    key=item.key,
                    dtype=item.dtype,
                    first=first,
                    variables=variables,
                    numbers=numbers,
                    like=number if first else None,
                )
                at = numbers.stop

    def is_current(self) -> bool:
        """Return whether nothing was attached to the objects, or removed, since this was made."""
        for node, before in self._nodes:
            now = private.children_of(node)
            if len(now) != len(before) or not all(map(operator.is_, now, before)):
                return False
        return True

    @property
    def has_late_optimizer(self) -> bool:
        """Whether an optimizer of Keras does not have its variables yet."""
        return any(private.is_optimizer(node) and not node.built for node, _ in self._nodes)

    def holds(self, variable: Any) -> bool:
        wanted = (variable, getattr(variable, "value", None))  # Keras wraps a variable
        return any(_saved(node) is one for node, _ in self._nodes for one in wanted)

    def left_out(self, without_optimizers: bool) -> list[str]:
        """Return the names of Keras' variables that a restore does not reach.

        If `without_optimizers`, a variable that the restore reaches only through the optimizer that
        trains it counts as not reached.
        """
        nodes = [node for node, _ in self._nodes]
        reached = private.nodes_without_optimizers(nodes[0]) if without_optimizers else nodes
        held = {id(_saved(node)) for node in reached}
        variables = private.variables_of_layers(nodes)
        return [one.path for one in variables if not {id(one), id(one.value)} & held]

    def spec(self, plan: CheckpointPlan) -> StateSpec:
        sizes: list[int | None] = [_size_of(item.variable) for item in self.tracked]
        entries = [
            CheckpointEntry(item.key, item.slice, item.dtype, number) for number, item in enumerate(self.tracked)
        ]
        entries.append(CheckpointEntry(private.GRAPH_KEY, "", "string", len(sizes)))
        sizes.append(None)
        layout = lay_out(sizes, [list(range(len(sizes)))])
        return StateSpec(plan=plan, sharded=False, shards=(tuple(entries),), sizes=sizes, layout=layout, has_step=True)

    def values_of_others(self) -> dict[int, Any]:
        """Return the values that are not in variables, by number.

        Their owners serialize them, so this runs on the training thread.
        """
        values = dict[int, Any]()
        for numbers, serialize in self._serializers:
            is_copy = private.exports_copies(self.tracked[numbers[0]].owner)
            for number, value in zip(numbers, serialize(), strict=True):
                array = value if isinstance(value, np.ndarray) else array_of(value)
                # An array of Python objects holds `bytes`, which cannot change. Any other array may be the owner's own
                # memory, which changes at the next step. So it is copied, unless the owner has returned a copy.
                values[number] = array if is_copy or array.dtype == object else np.array(array)
        return values

    def graph_array(self) -> Any:
        return _strings([self._proto_bytes])


def _saved(owner: Any) -> Any:
    """Return the object that is saved: `owner`, or the object inside it if `owner` is a wrapper.

    If a distributed variable lacks an attribute, it looks the attribute up in its value. Reading
    the value may need all tasks. So this function looks only in the class and the instance's dict.
    """
    return owner.obj if hasattr(type(owner), "obj") or "obj" in getattr(owner, "__dict__", ()) else owner


def _track(owner: Any, key: str, spec: str, value: Any) -> Tracked:
    variable = None if spec else _variable_of(owner)
    saved = _saved(owner)
    copies = tuple(private.components_of(saved)[1:]) if variable is not None else ()
    is_own = private.is_of_many_tasks(saved) and not private.is_mirrored(saved)
    dtype = (value if variable is None else variable).dtype.base_dtype.name
    return Tracked(key=key, slice=spec, dtype=dtype, owner=owner, variable=variable, copies=copies, is_own=is_own)


def _serializer_of(items: list[Tracked]) -> Callable[[], list[Any]]:
    """Return a function that reads the current values of `items`, which are all of one owner.

    Raise CannotCapture if only TensorFlow can read them.
    """
    owner = items[0].owner
    if hasattr(owner, "capture_late"):  # an object of procsv's. It returns at once, and its bytes are made later
        return lambda: [owner.capture_late()]
    serialize = getattr(owner, "_serialize_to_tensors", None)
    # `owner` is TensorFlow's wrapper for an object that is saved in the older way. If a spec holds a value and not a
    # function, the value is as old as the wrapper, so it cannot be used.
    if hasattr(owner, "saveables"):
        if private.has_serializer(owner.obj):
            serialize = owner.obj._serialize_to_tensors
        elif not all(callable(spec._tensor) for saveable in owner.saveables for spec in saveable.specs):
            serialize = None
    if serialize is None:
        raise CannotCapture(f"{items[0].key} is read by TensorFlow alone")
    return lambda: [_tensor_of(value) for value in _flat(serialize())]


def _flat(serialized: Any) -> list[Any]:
    """Return all values in order, including the values of slices."""
    return [one for value in serialized.values() for one in (value.values() if isinstance(value, dict) else (value,))]


def _tensor_of(value: Any) -> Any:
    """Return the tensor of `value`.

    `value` is a tensor, a SaveSpec, a distributed variable, or a function that returns one of
    these. A distributed variable gives the combined value of its replicas.
    """
    value = value() if callable(value) else value
    if isinstance(value, tf.Variable):
        return tf.convert_to_tensor(value)
    return value if isinstance(value, tf.Tensor) else value.tensor


def _variable_of(owner: Any) -> Any:
    """Return the resource variable that holds the value of a trackable; None if there is none.

    The trackable may be the variable itself, or wrap it, as Keras' variables do. If the trackable
    is mirrored, or has replicas in other tasks, this is the variable of this task's first replica.
    """
    for candidate in (owner, getattr(owner, "value", None)):
        if isinstance(candidate, private.resource_variable):
            return candidate
    saved = _saved(owner)
    if private.is_mirrored(saved):
        return private.components_of(saved)[0]
    # This task cannot read the replicas of other tasks, so its own value stands for all.
    return private.components_of(saved)[0] if private.is_of_many_tasks(saved) else None


def _size_of(variable: Any) -> int | None:
    """Return the size in bytes; None if it is not known beforehand."""
    if variable is None or variable.dtype in (tf.string, tf.variant) or not variable.shape.is_fully_defined():
        return None
    return int(variable.shape.num_elements()) * int(variable.dtype.base_dtype.size)


def array_of(tensor: Any) -> Any:
    """Return what a slot holds of a tensor: its memory, or the bytes of its elements."""
    if tensor.dtype == tf.variant:
        return variants_of(tensor)
    return view_of(tensor)


def view_of(tensor: Any) -> Any:
    """Return a view of a tensor's memory.

    Python's buffers do not know some types, such as bfloat16. Then the elements are unsigned
    integers of the same size. A string tensor gives an array of Python objects instead of a view.
    """
    array = np.asarray(private.view_tensor(tensor))
    if tensor.dtype == tf.string:
        return array.astype(object)
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")


def variants_of(tensor: Any) -> Any:
    """Return the elements of a variant tensor, such as an iterator's state, as protos."""
    proto = _tensor_proto()
    proto.ParseFromString(tf.io.serialize_tensor(tensor).numpy())
    packed = [value.SerializeToString() for value in proto.variant_val]
    if not packed and proto.tensor_content:
        packed = list(_lengths_first(proto.tensor_content, int(np.prod(tensor.shape.as_list(), dtype=int))))
    return _strings(packed).reshape(tensor.shape.as_list())


def variant_tensor(values: list[bytes], shape: tuple[int, ...]) -> Any:
    """Return the variant tensor with these elements."""
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
    """Yield the elements of a packed tensor.

    `content` has the lengths of all `count` elements first, as varints, and then their bytes.
    """
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
    """Return an array of objects; a scalar for one value."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(()) if len(values) == 1 else array
