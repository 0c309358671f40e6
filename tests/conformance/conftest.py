"""Every test of this folder runs with ours and, of the long ones, with TensorFlow's class, which changes only with TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.training import supervisor as tf_supervisor

import procsv
from tests.conformance.differences import Kind

TENSORFLOWS = tf_supervisor.Supervisor
MONITORED = (
    "CheckpointSaverHook",
    "ChiefSessionCreator",
    "MonitoredSession",
    "MonitoredTrainingSession",
    "Scaffold",
    "SingularMonitoredSession",
    "StepCounterHook",
    "SummarySaverHook",
    "WorkerSessionCreator",
)
THEIRS = SimpleNamespace(**{name: getattr(tf.compat.v1.train, name) for name in MONITORED})


@pytest.fixture(params=[pytest.param("tensorflow", marks=pytest.mark.long), "procsv"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Whose class this test has."""
    if request.param == "tensorflow":
        return Kind(request.param, TENSORFLOWS, THEIRS)
    return Kind(request.param, procsv.Supervisor, procsv)


@pytest.fixture
def plain() -> None:
    """Asked for by tests of a plain TensorFlow 2 program, whose threads are in eager mode."""


@pytest.fixture(autouse=True)
def without_eager_execution(request: pytest.FixtureRequest) -> Iterator[None]:
    """What tf.compat.v1.disable_eager_execution() does, undone afterwards; each test has a graph of its own."""
    if "plain" in request.fixturenames:
        with tf.Graph().as_default():
            yield
        return
    context.context().executing_eagerly()  # a thread keeps the mode of its first look, which is not to be this test's
    before: Any = context.default_execution_mode
    context.default_execution_mode = context.GRAPH_MODE
    try:
        with context.graph_mode(), tf.Graph().as_default():
            yield
    finally:
        context.default_execution_mode = before
