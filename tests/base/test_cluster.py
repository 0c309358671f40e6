"""Each task of a run learns its place and the addresses of the others."""

import json

from procsv.base.cluster import GRPC_OPTIONS, fill_in, list_tasks, make_cluster, needs_address, task_environment
from procsv.base.identity import TaskId

CHIEF, WORKER, OTHER, PS, EVALUATOR = map(TaskId.parse, ("chief", "worker.0", "worker.1", "ps.0", "evaluator.0"))
CLUSTER = make_cluster({OTHER: "a:3", WORKER: "a:2", PS: "a:4", CHIEF: "a:1"})


def test_the_task_with_the_saved_state_comes_first() -> None:
    assert list_tasks(2, 1, 1) == (CHIEF, WORKER, OTHER, PS, EVALUATOR)
    assert list_tasks(2, 1, 0, has_chief=False) == (WORKER, OTHER, PS)


def test_addresses_are_in_the_order_of_the_indexes() -> None:
    assert CLUSTER == {"chief": ["a:1"], "worker": ["a:2", "a:3"], "ps": ["a:4"]}
    assert not needs_address(EVALUATOR)


def test_an_evaluator_learns_of_the_other_tasks_but_not_they_of_it() -> None:
    found = task_environment(CLUSTER, EVALUATOR)
    assert found["PROCSV_TASK"] == "evaluator.0"
    assert json.loads(found["TF_CONFIG"]) == {"cluster": CLUSTER, "task": {"type": "evaluator", "index": 0}}


def test_a_task_retries_soon_for_a_returning_task_unless_the_user_has_set_the_delay() -> None:
    assert task_environment(CLUSTER, PS)[GRPC_OPTIONS] == "grpc.initial_reconnect_backoff_ms=100"
    given = "grpc.keepalive_time_ms=2000"
    found = task_environment(CLUSTER, PS, given)[GRPC_OPTIONS]
    assert found == f"{given},grpc.initial_reconnect_backoff_ms=100"
    assert task_environment(CLUSTER, PS, found)[GRPC_OPTIONS] == found, "a fork of a task is told once more"
    own = "grpc.initial_reconnect_backoff_ms=5000"
    assert task_environment(CLUSTER, PS, own)[GRPC_OPTIONS] == own


def test_arguments_give_each_task_its_identity_and_the_addresses_of_the_others() -> None:
    args = ("--job={task_type}", "{task_index}", "{ps_hosts};{worker_hosts};{chief_hosts}", "{other}")
    assert fill_in(args, CLUSTER, OTHER) == ("--job=worker", "1", "a:4;a:2,a:3;a:1", "{other}")
    assert fill_in(("{ps_hosts}",), make_cluster({WORKER: "a:2"}), WORKER) == ("",)
