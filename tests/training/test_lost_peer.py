"""TensorFlow's errors about another task are told apart from the program's own."""

from __future__ import annotations

import pytest
import tensorflow as tf

from procsv.training.runtime.last_words import find_lost_peer, is_of_stop

UNHEALTHY = "Error reported from /job:worker/task:1: The following tasks are unhealthy"
ABORTED = "Graph execution error:\n\nCollective ops is aborted by: {}\nThe error could be from a previous operation."


@pytest.mark.parametrize(
    ("error", "peer"),
    [
        (
            tf.errors.UnavailableError(None, None, ABORTED.format("from remote target /job:worker/replica:0/task:1")),
            "worker.1",
        ),
        (
            tf.errors.UnavailableError(None, None, "device_/job:worker/replica:0/task:0 " + ABORTED.format(UNHEALTHY)),
            "worker.1",
        ),
        (tf.errors.DeadlineExceededError(None, None, ABORTED.format("RPC: /Heartbeat")), "another member"),
        (tf.errors.InvalidArgumentError(None, None, ABORTED.format("shapes differ")), ""),
        (tf.errors.DeadlineExceededError(None, None, "a queue is closed"), ""),
        (ValueError(ABORTED.format("me")), ""),
    ],
)
def test_an_aborted_collective_names_a_member_that_is_gone(error: Exception, peer: str) -> None:
    assert find_lost_peer(error) == peer


@pytest.mark.parametrize(
    ("error", "is_its"),
    [
        (
            tf.errors.OutOfRangeError(
                None, None, "FIFOQueue 'q' is closed and has insufficient elements (requested 1)"
            ),
            True,
        ),
        (tf.errors.CancelledError(None, None, "Session was closed."), True),
        (tf.errors.OutOfRangeError(None, None, "End of sequence"), False),
        (tf.errors.InvalidArgumentError(None, None, "the queue is closed and has insufficient elements"), False),
        (RuntimeError("is closed and has insufficient elements"), False),
    ],
)
def test_a_stop_closes_queues_and_cancels_and_other_errors_are_the_programs(error: Exception, is_its: bool) -> None:
    assert is_of_stop(error) is is_its
