"""The bundle writer makes the same files as TensorFlow's ops, and leaves to TensorFlow what only it can do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from procsv.base.identity import TRAINER
from procsv.base.run.manifest import FileSum
from procsv.base.system import disk
from procsv.ipc.shm.slot_file import SlotPool
from procsv.ipc.shm.slot_index import DTYPES
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.services.checkpoint.core.facts import WriteMismatch
from procsv.services.checkpoint.format import data_file, manifest
from procsv.services.checkpoint.format.bundle_index import BLOCK_BYTES, UnsupportedTensor, encode_table, parse_slice
from procsv.services.checkpoint.format.bundle_reader import check_contents, check_structure
from procsv.services.checkpoint.format.bundle_writer import CHUNK_BYTES, plan_bundle
from procsv.services.checkpoint.store import write
from tests.support import tf_ops_writer

ROOT = Path(__file__).parents[2]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def both(reader: SlotReader, tmp_path: Path) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Write with TensorFlow and with our writer. Read both back and check them by their own checksums."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for directory in (ours, theirs):
        directory.mkdir()
    tf_ops_writer.write(reader.contents, reader.map, str(theirs / "model.ckpt-7"))
    written = write.write_files(reader.contents, reader.map, str(ours / "model.ckpt-7"))
    write.read_back(written)
    check_contents(check_structure(written.path))
    return contents(theirs), contents(ours)


def long_keys() -> dict[str, Any]:
    deep = "/".join(["model", "tower_with_a_long_name", "block_of_layers"] * 2)
    named: dict[str, Any] = {f"{deep}/layer_{n}/{'x' * (n % 50)}": np.float32(n) for n in range(9000)}
    return named | {deep: np.zeros((2, 0)), deep + "/layer": np.ones(1), "\u00e9\U0001f600": np.int64(3)}


MANY = {
    name: np.arange(12).astype(name if name in np.sctypeDict else getattr(ml_dtypes, name))
    for name in DTYPES
    if not name.startswith("q")
}
SLICES = [
    [("p", "7 10 0,3:-", np.arange(30.0).reshape(3, 10)), ("whole", "4 -", np.arange(4)), ("z", "", np.float32(1))],
    [("p", "7 10 3,4:0,10", np.arange(40.0).reshape(4, 10)), ("a", "200000 64,100000", np.zeros(100000, np.int8))],
    [("a", "200000 0,64", np.zeros(64, np.int8)), ("a", "200000 100064,99936", np.ones(99936, np.int8))],
]
CASES: dict[str, tuple[Any, bool]] = {
    "several blocks, long common beginnings": (long_keys(), False),
    "no order": ([[("b", "", np.ones(3)), ("a", "", np.zeros(2)), ("ab", "", np.float32(1))]], False),
    "every type": (MANY, False),
    "slices over shards": (SLICES, True),
    "strings": (
        {
            "s": np.array([b"", b"x" * 200, b"y" * 70000], dtype=object),
            "none": np.zeros(0, object),
            "t": np.array(b"one", object),
        },
        False,
    ),
    "more than a chunk": ({"a": np.arange(300), "big": np.arange(3 * CHUNK_BYTES // 8 + 5), "c": np.arange(7)}, False),
    "keys and values larger than blocks": (
        [[("k" * BLOCK_BYTES * 2, "", np.ones(2)), ("k" * 9, "", np.ones(3)), ("l" * BLOCK_BYTES, "", np.ones(1))]],
        False,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_both_writers_make_the_same_files(name: str, run: Any, plan: Any, publish: Any, tmp_path: Path) -> None:
    values, sharded = CASES[name]
    reader = SlotReader(publish(run.pool(size=4_000_000), plan(), values, 1, 7, sharded=sharded))

    theirs, ours = both(reader, tmp_path)

    reader.close()
    assert ours == theirs


TEXT = st.text(min_size=1, max_size=30) | st.sampled_from(["a", "aa", "a/b", "a\0", "\x01", "\x7f"])
TENSORS = st.dictionaries(TEXT, st.lists(st.integers(0, 3), max_size=3).map(lambda shape: np.ones(shape)), min_size=1)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensors=TENSORS)
def test_names_and_shapes_of_any_kind_give_the_same_files(
    tensors: Any, run: Any, plan: Any, publish: Any, tmp_path_factory: Any
) -> None:
    pool = SlotPool(run.paths.shm_dir, run.id, TRAINER, 1)
    pool.reserve(1000)
    reader = SlotReader(publish(pool, plan(), tensors, 1, 7))
    theirs, ours = both(reader, tmp_path_factory.mktemp("any"))
    reader.close()
    pool.unlink()
    assert ours == theirs


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(pairs=st.dictionaries(st.binary(min_size=1, max_size=6), st.binary(max_size=9)), big=st.booleans())
def test_a_table_reads_back_as_it_was_written(pairs: dict[bytes, bytes], big: bool) -> None:
    from procsv.services.checkpoint.format.bundle_reader import _parse_table

    padding = b"v" * (BLOCK_BYTES // 3 if big else 0)
    table = {key: value + padding for key, value in sorted(pairs.items())}
    assert _parse_table(encode_table(table.items())) == table


@pytest.mark.parametrize(
    ("shards", "dtypes"),
    [
        ([[("a", "", np.ones(3)), ("a", "", np.ones(3))]], {}),
        ([[("a", "", np.ones(3))], [("a", "", np.ones(3))]], {}),
        ([[("a", "6 0,3", np.ones(3)), ("a", "7 3,3", np.ones(3))]], {}),
        ([[("a", "6 0,3", np.ones(3))], [("a", "", np.ones(6))]], {}),
        ([[("a", "6 0,3", np.ones(4))]], {}),
        ([[("a", "", np.ones(4))], []], {}),
        ([[("", "", np.ones(4))]], {}),
        ([[("a", "", np.ones(4))]], {"a": "resource"}),
        ([[("a", "6 0,3", np.ones(3))]], {"a": "variant"}),
        ([[("a", "", np.ones(4))]], {"a": "float32"}),
    ],
)
def test_an_impossible_request_is_refused_before_a_file_is_touched(
    shards: Any, dtypes: Any, run: Any, plan: Any, publish: Any
) -> None:
    reader = SlotReader(publish(run.pool(), plan(), shards, 1, 7, sharded=True, dtypes=dtypes))
    with pytest.raises(UnsupportedTensor):
        plan_bundle(reader.contents)
    reader.close()


@pytest.mark.parametrize("spec", ["3", "3 ", "x -", "3 0,4", "3 -1,2", "3 0,0", "3 4 -", "3 1", "3 1,1,1", "-3 -"])
def test_an_invalid_slice_is_refused(spec: str) -> None:
    with pytest.raises(UnsupportedTensor):
        parse_slice(spec)


@pytest.mark.parametrize("name", ["model.ckpt-7.data-00000-of-00001", "model.ckpt-7.index"])
@pytest.mark.parametrize("at", [0, -9])
def test_a_byte_that_the_disk_has_changed_is_noticed_when_read_back(
    name: str, at: int, run: Any, plan: Any, publish: Any, tmp_path: Path
) -> None:
    reader = SlotReader(publish(run.pool(), plan(), {"a": np.arange(1000), "b": np.ones(3)}, 1, 7))
    written = write.write_files(reader.contents, reader.map, str(tmp_path / "model.ckpt-7"))
    data = bytearray((tmp_path / name).read_bytes())
    data[at] ^= 4
    (tmp_path / name).write_bytes(data)

    with pytest.raises(WriteMismatch, match=name.partition("-7.")[2]):
        write.read_back(written)
    reader.close()


def test_a_large_file_is_not_read_back_and_only_its_size_is_checked(
    run: Any, plan: Any, publish: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_file, "keeps_up", lambda size, seconds: True)
    reader = SlotReader(publish(run.pool(), plan(), {"a": np.arange(1_500_000)}, 1, 7))
    written = write.write_files(reader.contents, reader.map, str(tmp_path / "model.ckpt-7"))
    (name,) = written.proven
    read: list[str] = []
    real = manifest.sum_file

    def seen(path: Path) -> FileSum:
        read.append(path.name)
        return real(path)

    monkeypatch.setattr(manifest, "sum_file", seen)
    write.read_back(written)
    assert read == ["model.ckpt-7.index"]

    disk.truncate(tmp_path / name, 11_999_999)
    with pytest.raises(WriteMismatch, match="has 11999999 bytes"):
        write.read_back(written)
    reader.close()


@pytest.mark.parametrize("key", ["a", "s"])
def test_a_byte_that_changes_in_the_slot_during_the_write_is_noticed(
    key: str, run: Any, plan: Any, publish: Any, tmp_path: Path
) -> None:
    strings = np.array([b"one", b"two"], dtype=object)
    reader = SlotReader(publish(run.pool(), plan(), {"a": np.arange(1000), "s": strings}, 1, 7))
    at = next(entry.offset for entry in reader.contents.shards[0] if entry.key == key)
    reader.map[at + 3] ^= 1

    with pytest.raises(WriteMismatch, match=key):
        write.write_files(reader.contents, reader.map, str(tmp_path / "model.ckpt-7"))
    reader.close()


def test_the_service_loads_neither_tensorflow_nor_numpy() -> None:
    code = "import sys, procsv.services.checkpoint.process; print({'tensorflow', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
