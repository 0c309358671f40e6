"""A snapshot is the whole state between two steps, bit for bit."""

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from procsv.base.identity import TRAINER
from procsv.ipc.shm.slot_file import SlotPool
from procsv.ipc.shm.slot_header import scan_slots
from procsv.ipc.shm.slot_index import prefix_of, unpack_strings
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.training.graph.save_config import SaveConfig, plan_of
from procsv.training.graph.saver_ops import UnsupportedSaver, read_restore_graph, read_save_graph
from procsv.training.graph.session import TrainingSession, adopt_session
from procsv.training.graph.state import GraphState
from procsv.training.graph.variable_views import TOGETHER_MAX, can_be_held, views_of
from procsv.training.snapshots.backends import SlotBackend
from procsv.training.snapshots.boundary import Boundary
from procsv.training.snapshots.restore_client import restore_slot
from procsv.training.snapshots.source import CannotRestore, StateSource

tf1 = tf.compat.v1
RUN = "0123456789abcdef"
CAPTURES = 400


@pytest.fixture
def shm() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="procsv-test-") as directory:
        yield Path(directory)


def _config(saver: Any, graph: Any, step: Any) -> SaveConfig:
    return SaveConfig.from_graph(saver, graph, step, plan_of(saver, "/tmp/none/model.ckpt", 1.0), None, has_meta=False)


def _backend(shm: Path, source: StateSource, never: frozenset[str] = frozenset()) -> SlotBackend:
    backend = SlotBackend(SlotPool(shm, RUN, TRAINER, 1), source, "test", never)
    backend.reserve()
    return backend


def _values(reader: SlotReader) -> dict[str, Any]:
    values = {}
    for shard in reader.contents.shards:
        for entry in shard:
            if entry.dtype == "string":
                data = unpack_strings(reader.map[entry.offset : entry.offset + entry.size])
                values[entry.key + entry.slice] = np.array(data, object).reshape(entry.shape)
            else:
                dtype = np.dtype(tf.as_dtype(entry.dtype).as_numpy_dtype)
                count = entry.size // dtype.itemsize
                array = np.frombuffer(reader.map, dtype, count, entry.offset).reshape(entry.shape)
                values[entry.key + entry.slice] = array.copy()
    return values


def _read(shm: Path) -> tuple[int, dict[str, Any]]:
    """Return the step of the newest snapshot by its header and by its name, and its values."""
    reader = SlotReader(scan_slots(shm)[0])
    try:
        reader.verify_slot()
        assert prefix_of(reader.contents) == f"/tmp/none/model.ckpt-{reader.info.step}"
        return reader.info.step, _values(reader)
    finally:
        reader.close()


@pytest.mark.parametrize("resource", [pytest.param(True, marks=pytest.mark.long), False], ids=["resource", "ref"])
def test_no_capture_of_four_hundred_is_torn_while_training_runs_in_a_tight_loop(shm: Path, resource: bool) -> None:
    with tf.Graph().as_default() as graph:
        step = tf1.train.get_or_create_global_step()
        weights = [
            tf1.get_variable(f"w{i}", [size], initializer=tf1.zeros_initializer(), use_resource=resource)
            for i, size in enumerate((50_000, 50_000, 50_000, 10, 3000))
        ]
        adds = [tf1.assign_add(w, tf.ones_like(w)) for w in weights[1:]]
        rows = tf1.scatter_add(weights[0], tf.range(50_000), tf.ones([50_000]))  # in place, for every kind
        train = tf.group(tf1.assign_add(step, 1), rows, *adds)
        config = _config(tf1.train.Saver(), graph, step)
        with tf1.Session() as session:
            way = _backend(shm, config.source_of(session))
            session.run(tf1.global_variables_initializer())
            boundary = Boundary(lambda: None)
            adopt_session(session, boundary)
            for sequence in range(1, CAPTURES + 1):
                session.run(train)
                with boundary.lock:
                    finish = way.capture(sequence, "")
                assert finish is not None
                copier = threading.Thread(target=finish)
                copier.start()
                session.run(train)  # during the copy
                session.run(train)
                copier.join()
                taken, values = _read(shm)
                assert taken == values["global_step"] == (sequence - 1) * 3 + 1
                for weight in weights:
                    assert (values[weight.op.name] == taken).all()
        way.close()


def test_every_kind_of_tensor_survives_bit_for_bit(shm: Path) -> None:
    rng = np.random.default_rng(7)
    dtypes = ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool", "complex64"]
    with tf.Graph().as_default() as graph:
        step = tf1.train.get_or_create_global_step()
        for name in dtypes:
            kind = tf.as_dtype(name)
            data = (rng.normal(size=(3, 5)) * 10).astype(kind.as_numpy_dtype)
            tf1.get_variable(f"v_{name}", initializer=tf.constant(data, kind), use_resource=True)
        tf1.get_variable("text", initializer=tf.constant([b"a\0b", b"", "ü".encode()]), use_resource=True)
        tf1.get_variable("scalar", initializer=tf.constant(2.5), use_resource=True)
        tf1.get_variable("empty", initializer=tf.zeros([0, 4]), use_resource=True)
        tf1.get_variable("parts", [10, 3], partitioner=tf1.fixed_size_partitioner(3))
        saver = tf1.train.Saver()
        config = _config(saver, graph, step)
        with tf1.Session() as session:
            way = _backend(shm, config.source_of(session))
            session.run(tf1.global_variables_initializer())
            finish = way.capture(1, "")
            assert finish is not None
            finish()
            wanted = {
                entry.key + entry.slice: session.run(entry.tensor)
                for shard in read_save_graph(saver, graph).shards
                for entry in shard
            }
        _, got = _read(shm)
        way.close()
    assert set(wanted) == set(got)
    for key, value in wanted.items():
        assert np.asarray(value).shape == got[key].shape, key
        assert np.asarray(value).tobytes() == got[key].tobytes() or np.array_equal(value, got[key]), key


def test_a_hash_table_that_grew_fits(shm: Path) -> None:
    with tf.Graph().as_default() as graph:
        step = tf1.train.get_or_create_global_step()
        table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1, name="table")
        keys = tf1.placeholder(tf.string, [None])
        fill = table.insert(keys, tf.range(tf.size(keys, out_type=tf.int64)))
        config = _config(tf1.train.Saver([*tf1.global_variables(), table]), graph, step)
        with tf1.Session() as session:
            way = _backend(shm, config.source_of(session))
            session.run(tf1.global_variables_initializer())
            for sequence, count in ((1, 3), (2, 20_000)):
                session.run(fill, {keys: [f"key {i}" for i in range(count)]})
                finish = way.capture(sequence, "")
                assert finish is not None
                finish()
                _, values = _read(shm)
                assert [len(v) for k, v in values.items() if k.endswith("keys")] == [count]
        way.close()


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "ref"])
def test_a_single_string_is_captured_as_the_array_that_it_is(shm: Path, resource: bool) -> None:
    with tf.Graph().as_default() as graph:
        step = tf1.train.get_or_create_global_step()
        tf1.get_variable("name", initializer=tf.constant("a name"), use_resource=resource)
        config = _config(tf1.train.Saver(), graph, step)
        with tf1.Session() as session:
            way = _backend(shm, config.source_of(session))
            session.run(tf1.global_variables_initializer())
            finish = way.capture(1, "")
            assert finish is not None
            finish()
            _, values = _read(shm)
            assert (values["name"].shape, values["name"].tolist()) == ((), b"a name")
        way.close()


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "ref"])
def test_a_state_fed_from_memory_is_the_captured_state_and_stays_so(shm: Path, resource: bool) -> None:
    with tf.Graph().as_default() as graph:
        step = tf1.train.get_or_create_global_step()
        weights = tf1.get_variable("w", [1000], initializer=tf1.random_normal_initializer(), use_resource=resource)
        train = tf.group(tf1.assign_add(step, 1), tf1.assign_add(weights, tf.ones_like(weights)))
        saver = tf1.train.Saver()
        config = _config(saver, graph, step)
        with tf1.Session() as session:
            way = _backend(shm, config.source_of(session))
            session.run(tf1.global_variables_initializer())
            session.run(train)
            finish = way.capture(1, "")
            assert finish is not None
            finish()
            wanted = session.run([step, weights])
        way.close()
        slot = scan_slots(shm)[0].path
        before = slot.read_bytes()
        with tf1.Session() as session:
            restore_slot(slot, GraphState(session, saver))
            got = session.run([step, weights])
            for _ in range(3):
                session.run(train)
        assert wanted[0] == got[0]
        assert wanted[1].tobytes() == got[1].tobytes()
        assert before == slot.read_bytes()


def test_a_snapshot_that_lacks_a_variable_of_the_graph_is_not_fed(shm: Path) -> None:
    with tf.Graph().as_default() as graph:
        step = tf1.train.get_or_create_global_step()
        config = _config(tf1.train.Saver(), graph, step)
        with tf1.Session() as session:
            way = _backend(shm, config.source_of(session))
            session.run(tf1.global_variables_initializer())
            finish = way.capture(1, "")
            assert finish is not None
            finish()
        way.close()
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        tf1.get_variable("new", [3])
        saver = tf1.train.Saver()
        with tf1.Session() as session, pytest.raises(CannotRestore, match="new"):
            restore_slot(scan_slots(shm)[0].path, GraphState(session, saver))


def test_a_slot_that_was_restored_from_is_never_overwritten(shm: Path) -> None:
    with tf.Graph().as_default() as graph:
        step = tf1.train.get_or_create_global_step()
        saver = tf1.train.Saver()
        config = _config(saver, graph, step)
        with tf1.Session() as session:
            first = _backend(shm, config.source_of(session))
            session.run(tf1.global_variables_initializer())
            finish = first.capture(1, "")
            assert finish is not None
            finish()
            first.close()
            restored = scan_slots(shm)[0].path
            second = _backend(shm, config.source_of(session), never=frozenset({str(restored)}))
            before = restored.read_bytes()
            for sequence in range(2, 8):
                finish = second.capture(sequence, "")
                assert finish is not None
                finish()
            assert before == restored.read_bytes()
        second.close()


def test_only_what_an_update_cannot_change_is_referenced() -> None:
    with tf.Graph().as_default():
        resource = tf1.get_variable("a", [3], use_resource=True)
        ref = tf1.get_variable("b", [3], use_resource=False)

        assert can_be_held(resource.read_value())
        assert not can_be_held(ref._ref())
        assert not can_be_held(tf.identity(ref._ref()))
        assert not can_be_held(tf.reshape(resource.read_value(), [3, 1]))


def test_thousands_of_variables_are_read_by_few_ops_each_on_their_own_device(
    caplog: pytest.LogCaptureFixture,
) -> None:
    count, devices = 2 * TOGETHER_MAX + 1, ("/device:CPU:0", "/device:CPU:1")
    with tf.Graph().as_default() as graph:
        variables = []
        for device in devices:
            with tf1.device(device):
                variables += [tf1.get_variable(f"{device[-1]}_{i}", initializer=float(i)) for i in range(count)]
        scattered = tf1.get_variable("scattered", [4], use_resource=True)
        tf1.scatter_add(scattered, [0], [1.0])
        at_once = tf1.get_variable("ref", [3], use_resource=False)
        tensors = [v.read_value() for v in (*variables, scattered)] + [at_once._ref()]
        before = set(graph.get_operations())
        caplog.clear()
        views = views_of(tensors)
        assert not caplog.records  # no warnings about functions that the program has not called
        made = [op for op in graph.get_operations() if op not in before and op.type == "_ReadVariablesOp"]

        assert [len(op.outputs) for op in made] == 2 * [TOGETHER_MAX, TOGETHER_MAX, 1]
        assert [op.device for op in made] == [device for device in devices for _ in range(3)]
        assert views[-2].op.control_inputs[0].type == "DisableCopyOnRead"
        assert views[-1] is tensors[-1]
        config = tf1.ConfigProto(device_count={"CPU": 2})
        with tf1.Session(config=config) as session:
            session.run(tf1.global_variables_initializer())
            read = session.run(views)
            assert [float(value) for value in read[: 2 * count]] == 2 * list(range(count))
            for value, expected in zip(read, session.run(tensors), strict=True):
                np.testing.assert_array_equal(value, expected)


def test_savers_that_only_their_own_op_can_serve_are_reported_with_the_reason() -> None:
    class Own(tf1.train.Saver):  # type: ignore[name-defined]
        def save(self, *args: Any, **kwargs: Any) -> Any:
            return super().save(*args, **kwargs)

    with tf.Graph().as_default() as graph:
        tf1.get_variable("v", [3])
        with pytest.raises(UnsupportedSaver, match="Own"):
            read_save_graph(Own(), graph)
        with pytest.raises(UnsupportedSaver, match="not built"):
            read_save_graph(tf1.train.Saver(defer_build=True), graph)
        with tf.control_dependencies([tf.print("side effect")]):
            saver = tf1.train.Saver()
        with pytest.raises(UnsupportedSaver, match="saving also runs"):
            read_save_graph(saver, graph)


def test_the_restore_ops_take_as_many_tensors_as_the_save_ops_write() -> None:
    with tf.Graph().as_default() as graph:
        tf1.get_variable("parts", [10, 3], partitioner=tf1.fixed_size_partitioner(3))
        tf1.get_variable("whole", [4])
        saver = tf1.train.Saver(sharded=True)

        saved = {(e.key, e.slice) for shard in read_save_graph(saver, graph).shards for e in shard}
        assert saved == set(read_restore_graph(saver, graph).outputs)


def test_an_adopted_session_is_still_tensorflows_and_passes_the_boundary() -> None:
    visits = []
    with tf.Graph().as_default():
        value = tf.constant(3)
        with tf1.Session() as session:
            boundary = Boundary(lambda: visits.append(boundary.runs))
            assert adopt_session(session, boundary)
            assert isinstance(session, tf1.Session)
            assert isinstance(session, TrainingSession)
            session.run(value)
            boundary.due = True
            assert session.run(value) == 3
            assert session.make_callable(value)() == 3
            other = threading.Thread(target=session.run, args=(value,))
            other.start()
            other.join()
    assert visits == [2, 3]


def test_a_call_from_the_boundary_does_not_wait_for_itself() -> None:
    with tf.Graph().as_default():
        value = tf.constant(5)
        with tf1.Session() as session:
            seen: list[int] = []
            boundary = Boundary(lambda: seen.append(session.run(value)))
            adopt_session(session, boundary)
            boundary.due = True
            session.run(value)
            with boundary.hold_thread():
                seen.append(session.run(value))
    assert seen == [5, 5]
