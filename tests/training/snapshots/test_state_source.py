"""The graph session keeps the contract of every state source, and NumPy keeps it without TensorFlow."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from procsv.training.graph.save_config import SaveConfig, plan_of
from procsv.training.graph.state import GraphState
from tests.support.launched import environment
from tests.support.numpy_kind import NumpyKind
from tests.support.programs import ROOT
from tests.support.state_contract import CONTRACT, Kind, Values

tf1 = tf.compat.v1


class GraphModel:
    """A session over variables of one kind."""

    def __init__(self, stack: ExitStack, seed: int, more: bool, resource: bool) -> None:
        graph = stack.enter_context(tf.Graph().as_default())
        rng = np.random.default_rng(seed)
        step = tf1.train.get_or_create_global_step()
        # Fed, because TensorFlow is slow with megabytes in the graph.
        drawn = tf1.placeholder(tf.float64, [700, 1000])
        weights = tf1.get_variable("weights", initializer=drawn, use_resource=resource)
        start = {drawn: rng.normal(size=(700, 1000))}
        bias = tf1.get_variable("bias", initializer=rng.normal(size=7).astype(np.float32), use_resource=resource)
        if more:
            tf1.get_variable("more", [3], initializer=tf1.zeros_initializer(), use_resource=resource)
        self._within: Callable[[], None] = lambda: None
        look = tf1.py_func(self._look, [], tf.int64, stateful=True)
        update = 0.01 * tf.reverse(weights, [0]) + tf.cast(bias[0], tf.float64)
        with tf.control_dependencies([look]):
            changed = tf1.assign_add(weights, update)
            with tf.control_dependencies([changed]):
                added = tf1.assign_add(bias, bias + tf.cast(step, tf.float32))
                with tf.control_dependencies([added]):
                    self._train = tf1.assign_add(step, 1).op
        self._evaluate = tf.reduce_sum(bias) + tf.cast(look, tf.float32)
        saver = tf1.train.Saver()
        self._saved = {v.op.name: v for v in tf1.global_variables()}
        init = tf1.global_variables_initializer()
        config = SaveConfig.from_graph(
            saver, graph, step, plan_of(saver, "/nowhere/model.ckpt", 1.0), None, has_meta=False
        )
        self.session = stack.enter_context(tf1.Session(graph=graph))
        self.session.run(init, start)
        self.source: GraphState = config.source_of(self.session)
        stack.callback(self.source.close)

    def _look(self) -> Any:
        self._within()
        return np.int64(0)

    def _run(self, fetch: Any, within: Callable[[], None]) -> None:
        self._within = within
        self.session.run(fetch)

    def train(self) -> None:
        self._run(self._train, lambda: None)

    def train_and_look(self, within: Callable[[], None]) -> None:
        self._run(self._train, within)

    def evaluate(self, within: Callable[[], None]) -> None:
        self._run(self._evaluate, within)

    def values(self) -> Values:
        return {key: v.tobytes() for key, v in tf1.Session.run(self.session, self._saved).items()}


class GraphKind:
    def __init__(self, stack: ExitStack, resource: bool) -> None:
        self._stack, self._resource = stack, resource

    def model(self, seed: int, more: bool = False) -> GraphModel:
        return GraphModel(self._stack, seed, more, self._resource)


@pytest.fixture(params=["graph, resource variables", "graph, ref variables", "numpy"])
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    with ExitStack() as stack:
        yield NumpyKind() if request.param == "numpy" else GraphKind(stack, "resource" in request.param)


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_a_state_source_keeps_its_contract(kind: Kind, check: Callable[[Kind], None]) -> None:
    check(kind)


def test_numpy_keeps_the_contract_in_a_process_that_never_imports_tensorflow() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.numpy_kind"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout == f"{len(CONTRACT)} kept\n", done.stderr


def test_a_closed_graph_session_is_recognized_by_its_errors() -> None:
    with ExitStack() as stack:
        model = GraphModel(stack, 1, more=False, resource=True)
        model.session.close()
        with pytest.raises(model.source.errors) as raised:
            model.source.read_step()
        assert model.source.is_closed(raised.value)
        assert not model.source.is_closed(RuntimeError("out of memory"))
