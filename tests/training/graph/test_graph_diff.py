"""When the graph has changed since its state was saved, the changed tensors are named and nothing
starts from step 0.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import procsv
from procsv.base.errors import UserError
from procsv.training.eager.private import GRAPH_KEY
from procsv.training.graph.restore import NAMES_MAX, changes_since, compare
from tests.support.journal import read_journal
from tests.support.launched import launched

tf1 = tf.compat.v1

PROGRAM = """
import os, threading
import tensorflow as tf
import procsv
tf1 = tf.compat.v1
tf1.disable_eager_execution()
step = tf1.train.get_or_create_global_step()
if os.environ["PROCSV_INCARNATION"] == "1":
    tf1.get_variable("old", [3])
    tf1.get_variable("grown", [3])
else:
    tf1.get_variable("new", [3])
    tf1.get_variable("grown", [4])
train = tf1.assign_add(step, 1)
with procsv.Supervisor(summary_op=None).managed_session() as session:
    while True:
        session.run(train)
        threading.Event().wait(0.02)
"""


@contextlib.contextmanager
def supervised(logdir: Path, **shapes: list[int]) -> Iterator[Any]:
    """Return a session of a graph with these variables."""
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        for name, shape in shapes.items():
            tf1.get_variable(name, shape)
        with procsv.Supervisor(logdir=str(logdir), summary_op=None).managed_session() as session:
            yield session


@pytest.mark.fault
def test_changes_since_a_checkpoint_are_named_and_nothing_starts_over(tmp_path: Path) -> None:
    with supervised(tmp_path / "logdir", old=[3], grown=[3]) as session:
        assert session.run(tf1.train.get_global_step()) == 0
    before = (tmp_path / "logdir" / "checkpoint").read_bytes()

    with (
        pytest.raises(
            tf.errors.NotFoundError, match=r"lacks new, which .*grown is float32 .4. in .*it has old"
        ) as missing,
        supervised(tmp_path / "logdir", new=[3], grown=[4]),
    ):
        pytest.fail("a session was made")
    with (
        pytest.raises(tf.errors.InvalidArgumentError, match=r"grown is float32 .4. .* float32 .3. ") as other,
        supervised(tmp_path / "logdir", old=[3], grown=[4]),
    ):
        pytest.fail("a session was made")
    assert isinstance(missing.value, UserError), "starting it again would not help"
    assert isinstance(other.value, UserError)
    assert (tmp_path / "logdir" / "checkpoint").read_bytes() == before


@pytest.mark.fault
def test_checkpoints_of_another_kind_of_program_are_named_as_such_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "logdir").mkdir()
    tf.train.Checkpoint(weight=tf.Variable(1.0)).save(str(tmp_path / "logdir" / "model.ckpt"))
    before = sorted((tmp_path / "logdir").iterdir())
    with (
        pytest.raises(tf.errors.NotFoundError, match=r"model.ckpt-1 .*tf.train.Checkpoint.*--new") as other,
        supervised(tmp_path / "logdir", weight=[3]),
    ):
        pytest.fail("a session was made")
    assert isinstance(other.value, UserError)
    assert GRAPH_KEY not in str(other.value)
    assert set(before) <= set((tmp_path / "logdir").iterdir())


@pytest.mark.long
@pytest.mark.fault
def test_changes_since_the_state_in_memory_are_named_and_the_run_gives_up_at_once(tmp_path: Path) -> None:
    program = tmp_path / "changing.py"
    program.write_text(PROGRAM)
    with launched(tmp_path / "logdir", "--snapshot-secs", "0.3", str(program)) as run:
        run.wait_for("a snapshot", lambda: run.events("ready") and run.status()["memory_step"] > 0)
        run.kill("trainer")
        assert run.wait_end() == 70
    said = " ".join(run.said().split())
    assert "it lacks new, " in said
    assert re.search(r"grown is float32 \[4\] .* float32 \[3\] ", said)
    assert "it has old, " in said
    journal = list(read_journal(tmp_path / "logdir" / "procsv" / "journal.jsonl"))
    assert [e["source"] for e in journal if e["event"] == "recovered"] == ["fresh"], "the first start only"
    assert len([e for e in journal if e["event"] == "spawned" and e["role"] == "trainer"]) == 2


def test_many_names_are_counted() -> None:
    wanted = {(f"v{i:02}", ""): tf.TensorSpec([3], tf.float32) for i in range(NAMES_MAX + 5)}

    text = str(compare(wanted, {("w", ""): tf.TensorSpec([3], tf.float32)}))

    assert f"v{NAMES_MAX - 1:02} and 5 more" in text
    assert f"v{NAMES_MAX:02}" not in text


def test_an_unknown_shape_fits_any() -> None:
    def fits(shape: list[int | None] | None, there: list[int], dtype: Any = tf.float32) -> bool:
        return not compare({("v", ""): tf.TensorSpec(shape, dtype)}, {("v", ""): tf.TensorSpec(there, tf.float32)})

    assert fits(None, [3])
    assert fits([None, 3], [2, 3])
    assert not fits([None, 3], [2, 4])
    assert not fits([3], [3, 1])
    assert not fits([3], [3], tf.int32)


def test_a_partitioned_variable_may_be_partitioned_differently(tmp_path: Path) -> None:
    def saver(parts: int, rows: int) -> Any:
        tf1.get_variable("v", [rows, 2], partitioner=tf1.fixed_size_partitioner(parts))
        return tf1.train.Saver()

    with tf.Graph().as_default(), tf1.Session() as session:
        first = saver(2, 6)
        session.run(tf1.global_variables_initializer())
        path = first.save(session, str(tmp_path / "model.ckpt"))
    with tf.Graph().as_default() as graph:
        assert not changes_since(path, saver(3, 6), graph)
    with tf.Graph().as_default() as graph:
        assert "v is float32 [8, 2] in the graph" in str(changes_since(path, saver(2, 8), graph))
