"""A state that other tasks may change during its capture is marked as mixed, from the graph and TF_CONFIG."""

from __future__ import annotations

import json

import pytest
import tensorflow as tf

from procsv.training.graph.mixing import changes_between_steps, may_mix

tf1 = tf.compat.v1
ALONE = {"cluster": {"chief": ["a:1"], "ps": ["b:1"], "evaluator": ["c:1"]}}
SEVERAL = {"cluster": {"chief": ["a:1"], "worker": ["a:2"], "ps": ["b:1"]}}


@pytest.mark.parametrize(
    ("device", "said", "is_mixed"),
    [
        ("/job:ps/task:0", json.dumps(SEVERAL), True),
        ("/job:ps/task:0", json.dumps(ALONE), False),
        ("/job:ps/task:0", None, True),
        ("/job:ps/task:0", "not JSON", True),
        ("/job:chief/task:0", json.dumps(SEVERAL), False),
        ("", json.dumps(SEVERAL), False),
    ],
)
def test_a_state_is_mixed_if_servers_hold_it_and_more_than_one_task_trains(
    device: str, said: str | None, is_mixed: bool
) -> None:
    with tf.Graph().as_default() as graph:
        with tf1.device(device):
            tf1.get_variable("w", [2], use_resource=True)
        assert may_mix(graph, {} if said is None else {"TF_CONFIG": said}) is is_mixed


def test_the_updates_of_a_sync_replicas_optimizer_come_between_steps() -> None:
    for is_synchronous in (False, True):
        with tf.Graph().as_default() as graph:
            step = tf1.train.get_or_create_global_step()
            w = tf1.get_variable("w", [2], use_resource=True)
            optimizer = tf1.train.GradientDescentOptimizer(0.1)
            if is_synchronous:
                optimizer = tf1.train.SyncReplicasOptimizer(optimizer, 2)
            optimizer.minimize(tf.reduce_sum(w), global_step=step)
        assert changes_between_steps(graph) is is_synchronous
