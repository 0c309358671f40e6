"""A tf.train.Checkpoint as a source of state: the contract of all sources, and files that are TensorFlow's own."""

from __future__ import annotations

import filecmp
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from procsv.base.identity import TRAINER
from procsv.ipc.shm.slot_file import NoRoom, SlotPool
from procsv.ipc.shm.slot_header import scan_slots
from procsv.ipc.shm.slot_index import pack_strings
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.services.checkpoint.store.state_file import write_state
from procsv.services.checkpoint.store.write import read_back, write
from procsv.training.eager import private
from procsv.training.eager.object_graph import view_of
from procsv.training.eager.state import EagerState
from procsv.training.snapshots.backends import SlotBackend
from procsv.training.snapshots.boundary import Boundary
from procsv.training.snapshots.restore_client import restore_slot
from procsv.training.snapshots.source import CannotRestore, Captured
from tests.support.numpy_state import numpy_plan
from tests.support.state_contract import CONTRACT, RUN, Kind, Values, only_a_call_that_may_change_the_state_says_so


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
        graph = self.source._update()[0]
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
def test_trackables_keep_the_contract_of_a_source_of_state(check: Callable[[Kind], None]) -> None:
    if check is only_a_call_that_may_change_the_state_says_so:
        pytest.skip("what an eager program does between two steps is its own affair: it may always change the state")
    check(EagerKind())


# -- files ---------------------------------------------------------------------------------------------------
class Net(tf.Module):
    """Variables of every kind that files tell apart."""

    def __init__(self) -> None:
        self.w = tf.Variable(tf.random.stateless_normal([8, 8], [1, 2]))
        self.parts = [tf.Variable(1.0), {"a": tf.Variable([1, 2])}]
        self.text = tf.Variable(["x", "yy"])
        self.flag = tf.Variable(True)
        self.short = tf.Variable(tf.cast([1.5], tf.bfloat16))
        self.half = tf.Variable(tf.cast(3.0, tf.float16))
        self.empty = tf.Variable(tf.zeros([0, 3]))
        self.ragged = tf.Variable(tf.zeros([2]), shape=tf.TensorShape(None))
        self.generator = tf.random.Generator.from_seed(3)


def module() -> tuple[Any, Callable[[], Any]]:
    net = Net()
    return tf.train.Checkpoint(net=net, n=tf.Variable(5, dtype=tf.int64)), lambda: [v.numpy() for v in net.variables]


def table() -> tuple[Any, Callable[[], Any]]:
    found = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    found.insert(["a", "b"], [1, 2])
    return tf.train.Checkpoint(t=found, v=tf.Variable(1.0)), lambda: sorted(found.export()[1].numpy().tolist())


def iterator() -> tuple[Any, Callable[[], Any]]:
    elements = iter(tf.data.Dataset.range(40).shuffle(9, seed=1))
    next(elements)
    return tf.train.Checkpoint(elements=elements, v=tf.Variable(1.0)), lambda: [int(next(elements)) for _ in range(9)]


def keras_model(optimizer: str = "adam", layers: int = 1) -> Callable[[], tuple[Any, Callable[[], Any]]]:
    def make() -> tuple[Any, Callable[[], Any]]:
        import keras

        hidden = [keras.layers.Dense(6, activation="relu") for _ in range(layers)]
        model = keras.Sequential(
            [keras.Input((5,)), *hidden, keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
        )
        model.compile(keras.optimizers.get({"class_name": optimizer, "config": {"use_ema": optimizer == "sgd"}}), "mse")
        model.optimizer.build(model.trainable_variables)
        variables = [*model.weights, *model.optimizer.variables]
        return tf.train.Checkpoint(model=model, optimizer=model.optimizer), lambda: [v.numpy() for v in variables]

    return make


def thousand_layers() -> Any:
    """Beside each other: one above another, they are too deep for Python."""
    import keras

    class Wide(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = [keras.layers.Dense(2) for _ in range(1000)]

        def build(self, shape: Any) -> None:
            for layer in self.dense:
                layer.build(shape)

    model = Wide()
    model.build((None, 3))
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


CASES = {
    "a module of every kind": module,
    "a table": table,
    "an iterator": iterator,
    "Keras with Adam": keras_model(),
    "Keras with an EMA": keras_model("sgd"),
    "a hundred layers": keras_model(layers=100),
}


@pytest.fixture
def shm() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="procsv-test-"))
    yield directory
    shutil.rmtree(directory)


def snapshot(source: EagerState, shm: Path, meanwhile: Callable[[], object] = lambda: None) -> Path:
    """A published snapshot; `meanwhile` is called between capture and copy."""
    backend = SlotBackend(SlotPool(shm, RUN, TRAINER, 1), source, "test")
    backend.reserve()
    finish = backend.capture(1, "")
    assert finish is not None
    meanwhile()
    finish()
    backend.close()
    return scan_slots(shm)[0].path


def test_a_capture_ahead_of_its_memory_is_the_state_of_that_moment(tmp_path: Path, shm: Path) -> None:
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


def test_a_capture_waits_for_its_memory_where_there_may_be_none(
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


def written(slot: Path, prefix: Path) -> None:
    reader = SlotReader(next(info for info in scan_slots(slot.parent) if info.path == slot))
    read_back(reader.contents, reader.map, write(reader.contents, reader.map, str(prefix)))
    reader.close()


def source_of(checkpoint: Any, logdir: Path) -> EagerState:
    return EagerState(checkpoint, numpy_plan(logdir), lambda: 4)


def assert_same(ours: Any, theirs: Any) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes() or np.array_equal(one, other)


@pytest.mark.parametrize("case", CASES)
def test_files_are_those_that_a_checkpoint_writes_and_restore_by_it_and_from_memory(
    case: str, tmp_path: Path, shm: Path
) -> None:
    checkpoint, values = CASES[case]()
    before = checkpoint.write(str(tmp_path / "before"))
    slot = snapshot(source_of(checkpoint, tmp_path), shm)
    written(slot, tmp_path / "ours")
    after = checkpoint.write(str(tmp_path / "after"))  # of an iterator that works ahead it may be another file
    for suffix in (".index", ".data-00000-of-00001"):
        theirs = [f"{before}{suffix}", f"{after}{suffix}"]
        assert any(filecmp.cmp(their, tmp_path / f"ours{suffix}", shallow=False) for their in theirs), suffix
    wanted = values()

    by_file, values_by_file = CASES[case]()
    by_file.read(str(tmp_path / "ours")).assert_consumed()
    assert_same(values_by_file(), wanted)
    by_memory, values_by_memory = CASES[case]()
    restore_slot(slot, source_of(by_memory, tmp_path))
    assert_same(values_by_memory(), wanted)


def test_the_files_of_a_thousand_layers_are_those_that_a_checkpoint_writes(tmp_path: Path, shm: Path) -> None:
    checkpoint = thousand_layers()
    theirs = checkpoint.write(str(tmp_path / "theirs"))
    written(snapshot(source_of(checkpoint, tmp_path), shm), tmp_path / "ours")
    for suffix in (".index", ".data-00000-of-00001"):
        assert filecmp.cmp(theirs + suffix, f"{tmp_path}/ours{suffix}", shallow=False)


def test_a_restored_variable_shares_the_snapshots_memory_until_it_is_updated(tmp_path: Path, shm: Path) -> None:
    first = tf.Variable(tf.range(1000, dtype=tf.float32))
    slot = snapshot(source_of(tf.train.Checkpoint(v=first), tmp_path), shm)
    before = slot.read_bytes()

    other = tf.Variable(tf.zeros(1000))
    reader = SlotReader(scan_slots(shm)[0])
    entry = next(e for e in reader.contents.shards[0] if e.key.startswith("v/"))
    source_of(tf.train.Checkpoint(v=other), tmp_path).restore(reader)
    memory = np.frombuffer(reader.map, np.float32, 1000, entry.offset)
    view = view_of(other.read_value())
    assert view.__array_interface__["data"][0] == memory.__array_interface__["data"][0]
    del view
    other.assign_add(tf.ones(1000))
    assert np.array_equal(other.numpy(), np.arange(1000) + 1)
    assert slot.read_bytes() == before
    reader.let_go()


def test_a_checkpoint_manager_goes_on_from_a_list_with_times(tmp_path: Path) -> None:
    checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
    paths = [checkpoint.save(str(tmp_path / "ckpt")) for _ in range(3)]
    write_state(tmp_path / "checkpoint", str(tmp_path / "ckpt"), paths, relative=True, lists_times=True)

    manager = tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=2)
    assert manager.checkpoints == paths
    newest = manager.save()
    assert newest == str(tmp_path / "ckpt-4")
    assert manager.checkpoints == [paths[2], newest]
    assert sorted(path.name for path in tmp_path.glob("*.index")) == ["ckpt-3.index", "ckpt-4.index"]


# -- objects that come and go ----------------------------------------------------------------------------------
def test_what_is_attached_later_is_in_the_next_snapshot(tmp_path: Path, shm: Path) -> None:
    root = tf.Module()
    root.parts, root.by_name = [tf.Variable(1.0)], {"a": tf.Variable(2.0)}
    source = source_of(tf.train.Checkpoint(net=root), tmp_path)
    graphs = [source._update()[0]]
    changes: list[Callable[[], None]] = [
        lambda: root.parts.append(tf.Variable(3.0)),
        lambda: root.by_name.update(b=tf.Variable(4.0)),
        lambda: setattr(root, "late", tf.Variable(5.0)),
        lambda: setattr(root, "late", tf.Variable(6.0)),  # another one of the same name
    ]
    for change in changes:
        assert source._update()[0] is graphs[-1]
        change()
        graphs.append(source._update()[0])
        assert graphs[-1] is not graphs[-2]
    assert len(graphs[-1].variables) == 5

    written(snapshot(source, shm), tmp_path / "ours")
    assert tf.train.load_variable(str(tmp_path / "ours"), "net/late/.ATTRIBUTES/VARIABLE_VALUE") == 6.0


def test_a_snapshot_is_of_its_moment_though_objects_are_attached_while_it_is_copied(tmp_path: Path, shm: Path) -> None:
    root = tf.Module()
    root.a = tf.Variable(tf.zeros(5000))
    source = source_of(tf.train.Checkpoint(net=root), tmp_path)

    def grow() -> None:
        root.a.assign_add(tf.ones(5000))
        root.b = tf.Variable(1.0)
        source._update()

    written(snapshot(source, shm, grow), tmp_path / "ours")
    keys = dict(tf.train.list_variables(str(tmp_path / "ours")))
    assert [key for key in keys if key.startswith("net/")] == ["net/a/.ATTRIBUTES/VARIABLE_VALUE"]
    assert not np.any(tf.train.load_variable(str(tmp_path / "ours"), "net/a/.ATTRIBUTES/VARIABLE_VALUE"))


def test_a_state_of_objects_that_are_not_made_yet_is_left_to_tensorflow(tmp_path: Path, shm: Path) -> None:
    whole, half = tf.Module(), tf.Module()
    whole.a, whole.b = tf.Variable(1.0), tf.Variable(2.0)
    half.a = tf.Variable(0.0)
    slot = snapshot(source_of(tf.train.Checkpoint(net=whole), tmp_path), shm)
    other = source_of(tf.train.Checkpoint(net=half), tmp_path)

    with pytest.raises(CannotRestore, match="net/b"):
        restore_slot(slot, other)
    assert half.a.numpy() == 0.0
    written(slot, tmp_path / "ours")
    other.restore(str(tmp_path / "ours"))
    half.b = tf.Variable(0.0)
    assert (half.a.numpy(), half.b.numpy()) == (1.0, 2.0)


def test_another_shape_is_refused_before_anything_is_changed(tmp_path: Path, shm: Path) -> None:
    slot = snapshot(source_of(tf.train.Checkpoint(a=tf.Variable(1.0), b=tf.Variable([2.0])), tmp_path), shm)
    first, second = tf.Variable(0.0), tf.Variable([0.0, 0.0])
    with pytest.raises(CannotRestore, match="shape"):
        restore_slot(slot, source_of(tf.train.Checkpoint(a=first, b=second), tmp_path))
    assert first.numpy() == 0.0


def test_what_is_no_variable_is_captured_as_it_is_at_each_snapshot(tmp_path: Path, shm: Path) -> None:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
    elements = iter(tf.data.Dataset.range(40).shuffle(9, seed=1))
    state = tf.train.experimental.PythonState  # has an own way of saving
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
def test_a_variable_that_is_updated_in_parts_is_captured_without_a_copy(tmp_path: Path) -> None:
    rows = tf.Variable(tf.zeros([2000, 50]))
    source = source_of(tf.train.Checkpoint(rows=rows), tmp_path)
    source.warm_up()

    def update() -> None:
        rows.scatter_sub(tf.IndexedSlices(tf.ones([2, 50]), tf.constant([3, 7])))

    def capture() -> tuple[Captured, int]:
        captured = source.capture(None)
        number = next(n for n, item in enumerate(source._update()[0].tracked) if item.key.startswith("rows/"))
        return captured, number

    for _ in range(4):  # by then it was seen that reading it copies
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


# -- without TensorFlow's private names -------------------------------------------------------------------------
def test_without_the_call_for_many_variables_each_is_read_by_itself(
    tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "reads_many", False)
    checkpoint, _ = module()
    theirs = checkpoint.write(str(tmp_path / "theirs"))
    written(snapshot(source_of(checkpoint, tmp_path), shm), tmp_path / "ours")
    assert filecmp.cmp(f"{theirs}.data-00000-of-00001", tmp_path / "ours.data-00000-of-00001", shallow=False)


@pytest.mark.parametrize("name", ["serialize_graph_view", "has_serializer", "extract_local_name", "resource_variable"])
def test_where_the_object_graph_is_not_known_tensorflow_saves(
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


def test_this_tensorflow_has_all_the_private_names() -> None:
    assert private.reads_many
    assert None not in (private.serialize_graph_view, private.extract_local_name, private.resource_variable)
    assert private.view_graph(tf.train.Checkpoint()) is not None
    assert hasattr(tf.constant(1.0), "_numpy")
