"""Run every test of this folder with our class, and in long runs with TensorFlow's, which changes
only with TensorFlow.
"""

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
    """Return whose class this test uses."""
    if request.param == "tensorflow":
        return Kind(request.param, TENSORFLOWS, THEIRS)
    return Kind(request.param, procsv.Supervisor, procsv)


@pytest.fixture
def plain() -> None:
    """Mark a test of a plain TensorFlow 2 program, whose threads are in eager mode."""


@pytest.fixture(autouse=True)
def without_eager_execution(request: pytest.FixtureRequest) -> Iterator[None]:
    """Do what tf.compat.v1.disable_eager_execution() does and undo it afterwards. Each test has its own graph."""
    if "plain" in request.fixturenames:
        with tf.Graph().as_default():
            yield
        return
    context.context().executing_eagerly()  # a thread keeps the mode it first sees, which must not be this test's
    before: Any = context.default_execution_mode
    context.default_execution_mode = context.GRAPH_MODE
    try:
        with context.graph_mode(), tf.Graph().as_default():
            yield
    finally:
        context.default_execution_mode = before
