"""A supervisor leaves the program's graph as TensorFlow's class would."""

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.conformance.conftest import TENSORFLOWS
from tests.conformance.differences import Kind
from tests.conformance.logdirs import events, said

tf1 = tf.compat.v1


def _trained(supervisor_class: Any, logdir: Path) -> tuple[Any, Any]:
    """Return the graph after a session, and its supervisor. The user's own save has left step 1 in `logdir`."""
    with tf.Graph().as_default() as graph:
        step = tf1.train.get_or_create_global_step()
        value = tf1.get_variable("value", [3])
        tf1.summary.scalar("first", value[0])
        train = tf1.assign_add(step, 1)
        supervisor = supervisor_class(logdir=str(logdir))
        with supervisor.managed_session() as session:
            session.run(train)
            supervisor.saver.save(session, supervisor.save_path, global_step=step)
    return graph, supervisor


@pytest.mark.fault
def test_the_graph_has_tensorflows_ops_and_so_do_its_files(kind: Kind, tmp_path: Path) -> None:
    wanted, _ = _trained(TENSORFLOWS, tmp_path / "wanted")
    graph, supervisor = _trained(kind.Supervisor, tmp_path / "logdir")
    graph_def = graph.as_graph_def(add_shapes=True)
    assert graph_def == wanted.as_graph_def(add_shapes=True)
    assert [op.name for op in graph.get_operations()] == [op.name for op in wanted.get_operations()]
    described = {said(e): e for e in events(tmp_path / "logdir")}
    assert tf1.GraphDef.FromString(described["graph_def"].graph_def) == graph_def
    assert tf1.MetaGraphDef.FromString(described["meta_graph_def"].meta_graph_def) == supervisor._meta_graph_def
    assert supervisor._meta_graph_def.graph_def == graph_def
    saved = tf1.MetaGraphDef.FromString((tmp_path / "logdir" / "model.ckpt-1.meta").read_bytes())
    assert saved.graph_def == graph_def
