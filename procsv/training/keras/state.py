"""Capture and restore a whole fit: model, optimizer, metrics, seeds and all that is in no variable.

fit.py makes the FitState. Its checkpoints are TensorFlow's: a program without procsv can restore
model and optimizer from one by `tf.train.Checkpoint(model=model, optimizer=optimizer).read(path)`.
`restore` only keeps what was found at the start. `put_back_state` restores it later, after Keras
has reset what it resets at the beginning of an epoch.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from procsv.base.errors import UserError
from procsv.base.plain_values import decode, encode
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.ipc.shm.slot_index import TensorEntry, unpack_strings
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.training.eager import replicas
from procsv.training.eager.object_graph import CannotCapture
from procsv.training.eager.private import GRAPH_KEY, find_op
from procsv.training.eager.state import EagerState
from procsv.training.keras import private
from procsv.training.keras.callback_variables import Spec, ids_of, make_placeholders, spec_of
from procsv.training.keras.epochs import is_small, written_variables
from procsv.training.keras.file_writer import FileWriter
from procsv.training.runtime.log import log
from procsv.training.snapshots.source import CannotRestore, Captured

PLACE_KEY = "procsv/place/.ATTRIBUTES/py_state"  # the entry with everything that is not in variables

Plain = dict[str, Any]


class _Late:
    """A plain value that is encoded only when its bytes are needed, off the training thread."""

    def __init__(self, value: Plain) -> None:
        self._value = value

    def __bytes__(self) -> bytes:
        return encode(self._value)


class Place(tf.train.experimental.PythonState):
    """Everything that is not in variables. `read` returns it at each snapshot."""

    def __init__(self, read: Callable[[], Plain]) -> None:
        self._read = read

    def serialize(self) -> bytes:
        return encode(self._read())

    def deserialize(self, string_value: bytes) -> None:
        """Do nothing: the place was read before anything was restored."""

    def capture_late(self) -> Any:
        array = np.empty((), dtype=object)
        array[()] = _Late(self._read())
        return array


class Rest(tf.Module):
    """What a Checkpoint of model and optimizer does not reach.

    That is the place, and variables such as seeds, metrics, a loss's own and the callbacks'. But
    `variables_besides` lists the variables of model and optimizer, too.
    """

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place, self.variables_besides, self.of_callbacks = place, list[Any](), list[Any]()


class FoundState:
    """A state that was found in a slot or in a checkpoint."""

    def __init__(self, where: SlotReader | str) -> None:
        self.where = where
        self.place = decode(_place_in_file(where) if isinstance(where, str) else _place_in_slot(where))


def _place_in_file(path: str) -> bytes:
    reader = tf.train.load_checkpoint(path)
    if not reader.has_tensor(PLACE_KEY):
        raise UserError(
            f"{path} holds no state of a model.fit: procsv.keras.BackupAndRestore did not save it. Give the callback "
            "a directory of its own, or move these checkpoints away"
        )
    found: bytes = reader.get_tensor(PLACE_KEY)
    return found


def _place_in_slot(reader: SlotReader) -> bytes:
    entries: list[TensorEntry] = [e for shard in reader.contents.shards for e in shard if e.key == PLACE_KEY]
    if not entries:
        raise CannotRestore("it holds no state of a fit")
    return unpack_strings(reader.map[entries[0].offset : entries[0].offset + entries[0].size])[0]


class FitState(EagerState):
    """The whole state of a fit."""

    def __init__(
        self,
        model: Any,
        plan: CheckpointPlan,
        is_of_this_fit: Callable[[Plain], bool],
        read_place: Callable[[], Plain],
        read_step: Callable[[], int],
        build: Callable[[Plain], None],
        count_calls: Callable[[], int],
        files: FileWriter,
        find_variables: Callable[[], dict[str, list[Any]]] = dict,
    ) -> None:
        """Make the source of state of a fit.

        `is_of_this_fit` returns whether a place belongs to this fit. `build` creates the variables
        of a place that do not exist yet. `count_calls` counts the batches that are not trained.
        `find_variables` returns the variables of the callbacks.
        """
        self._model, self._is_of_this_fit, self._build = model, is_of_this_fit, build
        self._count_calls, self._files, self._find_variables = count_calls, files, find_variables
        self.specs: dict[str, Spec] = {}  # of the callbacks' variables that are tracked, by their attribute
        self._rest = Rest(Place(read_place))
        self._besides: list[Any] = []
        self._of_step: list[Any] = []
        self.found: FoundState | None = None
        self.tracked = tf.train.Checkpoint(model=model, optimizer=model.optimizer, procsv=self._rest)
        self.track_variables()
        super().__init__(self.tracked, plan, read_step, read_step)

    def capture(self, into: mmap.mmap | None) -> Captured:
        """Capture the state. It records which model files were saved, so it is published only when
        no crash can lose these files any more.
        """
        self._track(self._of_callbacks())
        captured, before = super().capture(into), self._files.captured
        view = captured.view

        def make_arrays(taken: list[Any]) -> list[Any]:
            self._files.wait_made(before)
            return taken if view is None else view(taken)

        captured.view = make_arrays
        return captured

    def save_to(self, directory: Path, step: int) -> str:
        self._files.wait_made(self._files.captured)
        self._track(self._of_callbacks())
        return super().save_to(directory, step)

    def count_calls(self) -> int:
        return self._count_calls()

    def track_variables(self) -> None:
        """Track the variables that were created since the last call."""
        model = self._model
        variables = [
            *model.variables,
            *(v for metric in model.metrics for v in metric.variables),
            *private.global_seeds(),
        ]
        optimizer_variables = model.optimizer.variables if model.optimizer is not None else []
        variables += [*optimizer_variables, *self._of_step]
        besides = list({id(variable): variable for variable in variables}.values())
        if list(map(id, besides)) != list(map(id, self._besides)):
            self._besides = besides
            self._rest.variables_besides = besides

    def _of_callbacks(self) -> dict[str, list[Any]]:
        """Return the variables of the callbacks, without those that are tracked already."""
        known, found = ids_of(self._besides), dict[str, list[Any]]()
        for name, variables in self._find_variables().items():
            own = [one for one in variables if known.isdisjoint(ids_of([one]))]
            known |= ids_of(own)
            if own:
                found[name] = own
        return found

    def _track(self, of_callbacks: dict[str, list[Any]]) -> None:
        """Track these variables of the callbacks instead of the earlier ones."""
        variables = [one for own in of_callbacks.values() for one in own]
        if list(map(id, variables)) != list(map(id, self._rest.of_callbacks)):
            self._rest.of_callbacks = variables
        self.specs = {name: spec_of(own) for name, own in of_callbacks.items()}

    def _track_as_saved(self, place: Plain) -> list[str]:
        """Track exactly the callbacks' variables that the state of `place` has.

        Where the program has other variables now, or none, track placeholders instead. Return the
        attributes that are not restored: these, and attributes that the state lacks.
        """
        now, saved = self._of_callbacks(), place.get("variables", {})
        fits = {name for name, spec in saved.items() if name in now and spec_of(now[name]) == spec}
        self._track({name: now[name] if name in fits else make_placeholders(spec) for name, spec in saved.items()})
        return sorted((now.keys() | saved.keys()) - fits)

    @property
    def has_step_variables(self) -> bool:
        return bool(self._of_step)

    def track_step(self, is_traced: bool = True) -> None:
        """Track further variables of the traced step, such as a loss's or another optimizer's.

        The step writes to these variables, or may count in them, and neither model nor optimizer
        has them. If `is_traced` is False, no further variables are tracked.
        """
        self._of_step = []
        self.track_variables()
        if is_traced and private.is_alone(self._model):
            with contextlib.suppress(CannotCapture):
                tracked = [item.variable for item in self.current()[0].tracked if item.variable is not None]
                known = {id(variable.handle) for variable in tracked}
                graphs = private.traced_graphs(self._model)
                found = {id(one.handle): one for graph in graphs for one in _counted_in(graph, known)}
                self._of_step = list(found.values())
        self.track_variables()

    def name_variables(self) -> dict[str, list[str]]:
        """Return each checkpoint key's owner and variable name, for a drill's report."""
        model, known = self._model, dict[int, list[str]]()
        of_metrics = [v for metric in model.metrics for v in metric.variables]
        optimizer_variables = model.optimizer.variables if model.optimizer is not None else []
        owners = {"model": model.variables, "metric": of_metrics, "optimizer": optimizer_variables}
        for owner, variables in (*owners.items(), ("seed", private.seeds_of(model))):
            known |= {id(variable): [owner, variable.path] for variable in variables}
        tracked = self._graph.tracked if self._graph is not None else ()
        return {item.key: known[id(item.owner)] for item in tracked if id(item.owner) in known}

    def restore(self, state: SlotReader | str) -> None:
        """Keep the state that was found, for `put_back_state`.

        If it belongs to this fit, create the variables that it has, and check that they fit.
        """
        found = FoundState(state)
        if self._is_of_this_fit(found.place):
            self._build(found.place)
            self._track_as_saved(found.place)
            if isinstance(state, str):
                self._check_file(state)
            else:
                self.check_slot(state)
        self.found = found

    def _check_file(self, path: str) -> None:
        """Raise UserError if another model saved `path`.

        TensorFlow would silently restore only the variables that fit.
        """
        reader = tf.train.load_checkpoint(path)
        shapes = reader.get_variable_to_shape_map()
        there = {
            key: tuple(shape) for key, shape in shapes.items() if key != GRAPH_KEY and not replicas.is_of_replica(key)
        }
        graph = self.current()[0]
        now = {item.key: item.variable for item in graph.tracked}
        names = self.name_variables()

        def name(key: str) -> str:
            return names[key][1] if key in names else key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")

        changes = [f"{name(key)} is new" for key in sorted(now.keys() - there.keys())]
        changes += [f"{name(key)} is gone" for key in sorted(there.keys() - now.keys())]
        changes += [
            f"{name(key)} was {there[key]}, is {tuple(variable.shape)}"
            for key, variable in sorted(now.items())
            if variable is not None and key in there and not variable.shape.is_compatible_with(there[key])
        ]
        if changes:
            more = f", and {len(changes) - 3} more" if len(changes) > 3 else ""
            raise UserError(
                f"the model has changed since {path} was saved: {', '.join(changes[:3])}{more}.  Change it back, or "
                "train the new one in a directory of its own: procsv launch --new …, and another backup_dir where "
                "the program names one"
            )

    def hold_values(self) -> Any:
        """Hold the current values of all variables unchanged; None if they cannot be read."""
        self._track(self._of_callbacks())
        try:
            _, reader, _ = self.current()
        except CannotCapture:
            return None
        return reader, reader.read_variables()

    def put_held(self, held: Any) -> None:
        reader, values = held
        for number, variable in reader.variables:
            replicas.assign(variable, values[number])

    def put_back_state(self, found: FoundState) -> None:
        """Restore the variables. Log which attributes of callbacks have variables that differ."""
        left = self._track_as_saved(found.place)
        super().restore(found.where)
        if left:
            names = ", ".join(f"{kind}.{name}" for kind, _, name in map(str.split, left))
            log.warning(
                "procsv: the saved state does not fit the variables of %s: they start as the program makes them", names
            )
        self._track(self._of_callbacks())  # the next snapshot has the program's variables, without placeholders


def _counted_in(graph: Any, known: set[int]) -> list[Any]:
    """Return the variables that a traced step writes to, or that may be counters, in order of use.

    Variables whose handles have their id in `known` are left out.
    """
    order = {id(outer): number for number, (outer, _) in enumerate(graph.captures)}
    new = order.keys() - known
    others = [one for one in graph.variables if id(one.handle) in new]
    others.sort(key=lambda one: order[id(one.handle)])
    written = set(map(id, written_variables(graph, [one for one in others if not is_small(one)])))
    return [one for one in others if is_small(one) or id(one) in written]


NAMED_MAX = 3

_said: set[str] = set()


# -- what no snapshot holds ------------------------------------------------------------------------------------
def look_for_counting_ops(model: Any) -> None:
    """Report random operations of the traced step that have an internal counter.

    Reports once, off the training thread, and says what to use instead.
    """
    threading.Thread(target=_look_at_model, args=(model,), name="procsv-random-ops", daemon=True).start()


def _look_at_model(model: Any) -> None:
    found = find_counting_ops(model)
    if not found or ", ".join(found) in _said:
        return
    _said.add(", ".join(found))
    more = f" and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
    log.warning(
        "procsv: the training function of %s has random operations that count by themselves (%s%s): a resumed fit "
        "draws other numbers than one that was not interrupted.  Use keras.random with a keras.random.SeedGenerator, "
        "or a tf.random.Generator",
        type(model).__qualname__,
        ", ".join(found[:NAMED_MAX]),
        more,
    )


def find_counting_ops(model: Any) -> list[str]:
    """Return the kind of each random operation with an internal counter, and its layers."""
    found = dict[str, None]()
    for graph in private.traced_graphs(model):
        definition = graph.as_graph_def()
        functions = [definition.node, *(function.node_def for function in definition.library.function)]
        found |= dict.fromkeys(text for nodes in functions for text in _counting(nodes))
    return list(found)


def _counting(nodes: Any) -> Iterator[str]:
    for node in nodes:
        if "seed" in node.attr and "seed2" in node.attr and _is_stateful(node.op):
            place = node.name.rpartition("/")[0]
            yield f"{node.op} in {place}" if place else node.op


def _is_stateful(kind: str) -> bool:
    op = find_op(kind) if find_op is not None else None
    return op is not None and bool(op.is_stateful)
