"""A tf.train.Checkpoint keeps the contract of every state source."""

from __future__ import annotations

import filecmp
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from procsv.base.identity import TRAINER
from procsv.ipc.shm.slot_file import NoRoom, SlotPool
from procsv.ipc.shm.slot_header import scan_slots
from procsv.ipc.shm.slot_index import pack_strings
from procsv.training.eager import private
from procsv.training.eager.object_graph import view_of
from procsv.training.eager.state import EagerState
from procsv.training.snapshots.backends import SlotBackend
from procsv.training.snapshots.boundary import Boundary
from procsv.training.snapshots.restore_client import restore_slot
from procsv.training.snapshots.source import Captured
from tests.support.numpy_state import numpy_plan
from tests.support.state_contract import CONTRACT, RUN, Kind, Values, only_a_call_that_may_change_the_state_says_so
from tests.training.eager.eager_states import keras_model, module, snapshot, source_of, written


class EagerModel:
    """Variables of a module, trained by a tf.function."""

    def __init__(self, seed: int, more: bool) -> None:
        rng = np.random.default_rng(seed)
        self.module = tf.Module()
        self.module.step = tf.Variable(0, dtype=tf.int64, name="step")
        self.module.weights = tf.Variable(rng.normal(size=(700, 1000)), name="weights")
        self.module.bias = tf.Variable(rng.normal(size=7).astype(np.float32), name="bias")
        if more:
            self.module.more = tf.Variable(tf.zeros(3), name="more")
        self.checkpoint = tf.train.Checkpoint(module=self.module)
        self.source = _Source(self.checkpoint, numpy_plan(Path("/nowhere")), lambda: 1, self._read_step)
        self._train = tf.function(self._step)

    def _read_step(self) -> int:
        return int(self.module.step.numpy())

    def _step(self) -> None:
        module = self.module
        module.weights.assign_add(0.01 * tf.reverse(module.weights, [0]) + tf.cast(module.bias[0], tf.float64))
        module.bias.assign_add(module.bias + tf.cast(module.step, tf.float32))
        module.step.assign_add(1)

    def _pass(self, call: Callable[[], Any]) -> None:
        if self.source.boundary is None:
            call()
        else:
            self.source.boundary.pass_call(call)

    def train(self) -> None:
        self._pass(self._train)

    def train_and_look(self, within: Callable[[], None]) -> None:
        def step() -> None:
            self._train()
            within()

        self._pass(step)

    def evaluate(self, within: Callable[[], None]) -> None:
        self._pass(within)

    def values(self) -> Values:
        names = {"step": self.module.step, "weights": self.module.weights, "bias": self.module.bias}
        found = {f"module/{k}/.ATTRIBUTES/VARIABLE_VALUE": v.numpy().tobytes() for k, v in names.items()}
        if hasattr(self.module, "more"):
            found["module/more/.ATTRIBUTES/VARIABLE_VALUE"] = self.module.more.numpy().tobytes()
        graph = self.source.current()[0]
        return found | {private.GRAPH_KEY: pack_strings([graph.graph_array().item()])}


class _Source(EagerState):
    boundary: Boundary | None = None

    def attach(self, boundary: Boundary) -> None:
        super().attach(boundary)
        self.boundary = boundary


class EagerKind:
    def model(self, seed: int, more: bool = False) -> EagerModel:
        return EagerModel(seed, more)


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_trackables_keep_the_contract_of_a_state_source(check: Callable[[Kind], None]) -> None:
    if check is only_a_call_that_may_change_the_state_says_so:
        pytest.skip("what an eager program does between two steps is its own affair: it may always change the state")
    check(EagerKind())


def test_a_capture_before_its_memory_is_ready_holds_the_state_of_that_moment(tmp_path: Path, shm: Path) -> None:
    checkpoint, _ = keras_model()()
    before = checkpoint.write(str(tmp_path / "before"))
    backend = SlotBackend(SlotPool(shm, RUN, TRAINER, 1), source_of(checkpoint, tmp_path), "test")
    assert backend.captures_ahead()
    finish = backend.capture(1, "")
    assert finish is not None
    assert not backend.captures_ahead(), "only one can count on a free slot"
    for variable in checkpoint.model.variables:
        variable.assign(variable + 1)
    backend.reserve()
    finish()
    backend.close()
    written(scan_slots(shm)[0].path, tmp_path / "ours")
    assert filecmp.cmp(f"{before}.data-00000-of-00001", tmp_path / "ours.data-00000-of-00001", shallow=False)


def test_a_capture_waits_for_its_memory_if_there_may_be_none(
    tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(keras_model()()[0], tmp_path)
    with monkeypatch.context() as small:
        small.setattr(SlotBackend, "_room", lambda _: 4096)
        assert not SlotBackend(SlotPool(shm, RUN, TRAINER, 1), source, "test").captures_ahead()
    backend = SlotBackend(SlotPool(shm, RUN, TRAINER, 1), source, "test")
    finish = backend.capture(1, "")
    assert finish is not None
    with pytest.raises(NoRoom, match="no slot"):
        finish()  # nothing was reserved


# -- objects created and deleted -------------------------------------------------------------------------------
def test_an_object_attached_later_is_in_the_next_snapshot(tmp_path: Path, shm: Path) -> None:
    root = tf.Module()
    root.parts, root.by_name = [tf.Variable(1.0)], {"a": tf.Variable(2.0)}
    source = source_of(tf.train.Checkpoint(net=root), tmp_path)
    graphs = [source.current()[0]]
    changes: list[Callable[[], None]] = [
        lambda: root.parts.append(tf.Variable(3.0)),
        lambda: root.by_name.update(b=tf.Variable(4.0)),
        lambda: setattr(root, "late", tf.Variable(5.0)),
        lambda: setattr(root, "late", tf.Variable(6.0)),  # another one with the same name
    ]
    for change in changes:
        assert source.current()[0] is graphs[-1]
        change()
        graphs.append(source.current()[0])
        assert graphs[-1] is not graphs[-2]
    assert len(graphs[-1].variables) == 5

    written(snapshot(source, shm), tmp_path / "ours")
    assert tf.train.load_variable(str(tmp_path / "ours"), "net/late/.ATTRIBUTES/VARIABLE_VALUE") == 6.0


def test_a_slot_that_an_older_optimizer_makes_later_is_in_the_next_snapshot(tmp_path: Path) -> None:
    v = [tf.Variable(1.0), tf.Variable(2.0)]
    optimizer = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)
    source = source_of(tf.train.Checkpoint(optimizer=optimizer, v=v), tmp_path)
    before = len(source.current()[0].variables)
    for count in (1, 2):  # the second one is trained later
        optimizer.apply_gradients([(tf.constant(1.0), one) for one in v[:count]])
        assert len(source.current()[0].variables) == before + count


def test_a_snapshot_holds_its_own_moment_though_objects_are_attached_while_it_is_copied(
    tmp_path: Path, shm: Path
) -> None:
    root = tf.Module()
    root.a = tf.Variable(tf.zeros(5000))
    source = source_of(tf.train.Checkpoint(net=root), tmp_path)

    def grow() -> None:
        root.a.assign_add(tf.ones(5000))
        root.b = tf.Variable(1.0)
        source.current()

    written(snapshot(source, shm, grow), tmp_path / "ours")
    keys = dict(tf.train.list_variables(str(tmp_path / "ours")))
    assert [key for key in keys if key.startswith("net/")] == ["net/a/.ATTRIBUTES/VARIABLE_VALUE"]
    assert not np.any(tf.train.load_variable(str(tmp_path / "ours"), "net/a/.ATTRIBUTES/VARIABLE_VALUE"))


def test_a_non_variable_is_captured_afresh_at_each_snapshot(tmp_path: Path, shm: Path) -> None:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
    elements = iter(tf.data.Dataset.range(40).shuffle(9, seed=1))
    state = tf.train.experimental.PythonState  # saves in its own way
    counter = type("Counter", (state,), {"serialize": lambda self: str(self.n), "deserialize": _set_n})()
    counter.n = 1
    source = source_of(tf.train.Checkpoint(table=table, elements=elements, counter=counter), tmp_path)
    table.insert(tf.constant([1], tf.int64), tf.constant([2], tf.int64))
    next(elements)
    counter.n = 7
    slot = snapshot(source, shm)
    wanted = [int(next(elements)) for _ in range(5)]

    other_table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
    other_elements, other_counter = iter(tf.data.Dataset.range(40).shuffle(9, seed=1)), type(counter)()
    other = tf.train.Checkpoint(table=other_table, elements=other_elements, counter=other_counter)
    other_counter.n = 0
    restore_slot(slot, source_of(other, tmp_path))
    assert int(other_table.lookup(tf.constant(1, tf.int64))) == 2
    assert [int(next(other_elements)) for _ in range(5)] == wanted
    assert other_counter.n == 7


def _set_n(counter: Any, text: str) -> None:
    counter.n = int(text)


# -- copy on read ----------------------------------------------------------------------------------------------
def test_a_partially_updated_variable_is_captured_without_a_copy(tmp_path: Path) -> None:
    rows = tf.Variable(tf.zeros([2000, 50]))
    source = source_of(tf.train.Checkpoint(rows=rows), tmp_path)
    source.warm_up()

    def update() -> None:
        rows.scatter_sub(tf.IndexedSlices(tf.ones([2, 50]), tf.constant([3, 7])))

    def capture() -> tuple[Captured, int]:
        captured = source.capture(None)
        number = next(n for n, item in enumerate(source.current()[0].tracked) if item.key.startswith("rows/"))
        return captured, number

    for _ in range(4):  # by then its reads are known to copy
        update()
        capture()
    update()
    captured, number = capture()
    again, _ = capture()
    held, same = view_of(captured.arrays[number]), view_of(again.arrays[number])
    assert held.__array_interface__["data"][0] == same.__array_interface__["data"][0]
    before = held.copy()
    update()
    assert np.array_equal(held, before), "the view was written to"


# -- missing private names of TensorFlow ------------------------------------------------------------------------
def test_without_the_op_for_many_variables_each_is_read_by_itself(
    tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "reads_many", False)
    checkpoint, _ = module()
    theirs = checkpoint.write(str(tmp_path / "theirs"))
    written(snapshot(source_of(checkpoint, tmp_path), shm), tmp_path / "ours")
    assert filecmp.cmp(f"{theirs}.data-00000-of-00001", tmp_path / "ours.data-00000-of-00001", shallow=False)


@pytest.mark.parametrize("name", ["serialize_graph_view", "has_serializer", "extract_local_name", "resource_variable"])
def test_if_the_object_graph_is_not_understood_tensorflow_saves(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, name, None)
    variable = tf.Variable(3.0)
    source = source_of(tf.train.Checkpoint(v=variable), tmp_path)
    assert source.spec is None
    assert source.save_to(tmp_path, 7) == str(tmp_path / "model.ckpt-4")
    variable.assign(0.0)
    source.restore(str(tmp_path / "model.ckpt-4"))
    assert variable.numpy() == 3.0


def test_this_tensorflow_has_all_private_names() -> None:
    assert private.reads_many
    assert None not in (private.serialize_graph_view, private.extract_local_name, private.resource_variable)
    assert private.view_graph(tf.train.Checkpoint()) is not None
    assert hasattr(tf.constant(1.0), "_numpy")
