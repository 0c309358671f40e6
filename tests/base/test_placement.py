"""A launch finds its place in the run from Slurm's variables, TF_CONFIG or a JobSet's."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procsv.base import exit_codes
from procsv.base.cluster import list_tasks, make_cluster, needs_address, task_environment
from procsv.base.errors import UserError
from procsv.base.identity import TaskId
from procsv.base.placement import CLUSTERS, MOVED, Move, Placement, find_placement

CHIEF, WORKER, OTHER, PS, EVALUATOR = map(TaskId.parse, ("chief", "worker.0", "worker.1", "ps.0", "evaluator.0"))
GROUP = list_tasks(2, 1, 0)

# The variables that `srun -N2 -n3` gives its last process, alone on its node (Slurm 22.05).
LAST_OF_THREE = {
    "HOSTNAME": "front",
    "SLURMD_NODENAME": "n3",
    "SLURM_JOB_ID": "2",
    "SLURM_JOB_NODELIST": "n[2-3]",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "3",
    "SLURM_PROCID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[2-3]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_TASKS_PER_NODE": "2,1",
}


def group() -> st.SearchStrategy[tuple[TaskId, ...]]:
    """Draw the tasks of runs that have several."""
    counts = st.tuples(*(st.integers(0, most) for most in (12, 4, 2)), st.booleans())
    groups = counts.map(lambda of: list_tasks(*of[:3], has_chief=of[3]))
    return groups.filter(lambda tasks: len(tasks) > 1 and tasks[0].role in ("chief", "worker"))


def in_step(rank: int, ranks: int, **more: str) -> dict[str, str]:
    return LAST_OF_THREE | {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(ranks)} | more


def in_cluster(cluster: Mapping[str, Any], role: str, index: object = 0, **more: str) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})} | more


def in_pod(task: TaskId, **more: str) -> dict[str, str]:
    pod = {"PROCSV_TASK_TYPE": task.role, "JOB_COMPLETION_INDEX": str(task.index), "PROCSV_JOBSET": "digits"}
    return pod | more


def addresses_of(tasks: tuple[TaskId, ...]) -> dict[TaskId, str]:
    return {task: f"host-{number}:2222" for number, task in enumerate(filter(needs_address, tasks))}


def found(environment: Mapping[str, str], tasks: tuple[TaskId, ...] = (), cluster: str = "auto") -> Placement:
    placement = find_placement(cluster, environment, tasks)
    assert placement is not None
    return placement


def refusal(environment: Mapping[str, str], tasks: tuple[TaskId, ...] = (), cluster: str = "auto") -> str:
    with pytest.raises(UserError) as error:
        find_placement(cluster, environment, tasks)
    assert error.value.exit_code == exit_codes.USAGE
    return str(error.value)


# -- Slurm -------------------------------------------------------------------------------------------------------
def test_a_process_of_a_slurm_step_gets_the_task_of_its_rank() -> None:
    placement = found(LAST_OF_THREE, list_tasks(1, 1, 0))
    assert (placement.kind, placement.task, placement.rank, placement.ranks) == ("slurm", PS, 2, 3)
    assert (placement.host, placement.scheduler) == ("n3", "slurm:2.0.0")
    assert (placement.addresses, placement.coordinator, placement.coordinates) == (None, None, False)


@given(group())
def test_the_ranks_of_a_step_share_out_all_tasks_and_agree_on_the_rest(tasks: tuple[TaskId, ...]) -> None:
    placements = [found(in_step(rank, len(tasks)), tasks) for rank in range(len(tasks))]
    assert tuple(placement.task for placement in placements) == tasks
    assert {(placement.tasks, placement.scheduler) for placement in placements} == {(tasks, "slurm:2.0.0")}
    assert [placement.coordinates for placement in placements] == [True, *[False] * (len(tasks) - 1)]


def test_a_requeued_job_and_a_second_step_are_new_starts_of_the_run() -> None:
    first = in_step(0, 4)
    requeued, step = first | {"SLURM_RESTART_COUNT": "1"}, first | {"SLURM_STEP_ID": "1"}
    identities = [found(environment, GROUP).scheduler for environment in (first, requeued, step)]
    assert identities == ["slurm:2.0.0", "slurm:2.1.0", "slurm:2.0.1"]


@given(group(), st.integers(2, 30), st.data())
def test_every_rank_of_a_step_of_the_wrong_size_reports_both_sizes(
    tasks: tuple[TaskId, ...], ranks: int, data: st.DataObject
) -> None:
    if ranks != len(tasks):
        text = refusal(in_step(data.draw(st.integers(0, ranks - 1)), ranks), tasks)
        assert f"the step has {ranks} tasks" in text
        assert f"--ntasks={len(tasks)}" in text


def test_refusing_a_step_names_the_options_and_the_tasks_they_make() -> None:
    said = refusal(in_step(1, 3), GROUP)
    for words in ("3 tasks", "--workers 2 --ps 1 make 4 (1 chief, 2 workers, 1 ps)", "srun --ntasks=4"):
        assert words in said
    assert "--workers 2 --no-chief make 2 (2 workers)" in refusal(in_step(1, 3), list_tasks(2, 0, 0, has_chief=False))
    assert "--evaluators 1 makes 2 (1 chief, 1 evaluator)" in refusal(in_step(1, 3), list_tasks(0, 0, 1))


def test_the_last_ranks_of_a_step_with_spare_nodes_get_no_task() -> None:
    placements = [find_placement("auto", in_step(rank, 6), GROUP, 2) for rank in range(6)]
    assert [str(p.task) for p in placements if p] == ["chief", "worker.0", "worker.1", "ps.0", "spare.0", "spare.1"]
    assert {(p.tasks, tuple(map(str, p.spares))) for p in placements if p} == {(GROUP, ("spare.0", "spare.1"))}
    with pytest.raises(UserError, match=r"4 \(1 chief, 2 workers, 1 ps\) and --spare-nodes 1.*--ntasks=5"):
        find_placement("auto", in_step(1, 4), GROUP, 1)


def test_spare_nodes_are_refused_if_they_could_replace_nothing() -> None:
    for environment, tasks, cluster, why in (
        ({}, GROUP, "auto", "--spare-nodes"),
        (in_step(0, 4), GROUP, "local", "--spare-nodes"),
        (in_pod(CHIEF), GROUP, "auto", "Kubernetes"),
        (in_step(0, 2), (CHIEF,), "slurm", "--spare-nodes"),
        (in_cluster(CLUSTER, "spare", 1), (), "auto", "spare.1: give --spare-nodes 2"),
    ):
        with pytest.raises(UserError, match=re.escape(why)):
            find_placement(cluster, environment, tasks, 1)


def test_a_launch_that_restarts_keeps_its_given_task_and_its_own_name() -> None:
    move = Move("slurm:2.0.0", OTHER, (TaskId("spare", 1),))
    environment = in_step(4, 6, **{MOVED: msgspec.json.encode(move).decode()})
    placement = find_placement("auto", environment, GROUP, 2)
    assert placement is not None
    assert (placement.rank, str(placement.launch), placement.task) == (4, "spare.0", OTHER)
    assert (placement.tasks, placement.spares) == (GROUP, (TaskId("spare", 1),))
    with pytest.raises(UserError, match=MOVED):
        find_placement("auto", environment | {"SLURM_RESTART_COUNT": "1"}, GROUP, 2)


def test_a_batch_script_a_lone_process_and_a_step_of_single_trainings_are_local() -> None:
    batch = {name: value for name, value in LAST_OF_THREE.items() if not name.startswith("SLURM_STEP")}
    assert find_placement("auto", batch | {"SLURM_PROCID": "0"}, GROUP) is None
    assert find_placement("auto", in_step(0, 1), GROUP) is None
    assert find_placement("auto", in_step(1, 3), ()) is None
    assert find_placement("slurm", in_step(0, 1), ()) is None


def test_asking_for_slurm_outside_of_a_step_names_what_is_missing() -> None:
    assert "SLURM_STEP_NUM_TASKS" in refusal({}, GROUP, "slurm")
    text = refusal(in_step(1, 3), (), "slurm")
    assert "3 tasks" in text
    assert "without --workers makes 1 (1 chief)" in text


def test_parts_of_a_heterogeneous_job_do_not_count_as_one_step() -> None:
    assert "heterogeneous" in refusal(in_step(4, 4), GROUP)


# -- TF_CONFIG ---------------------------------------------------------------------------------------------------
@given(group(), st.randoms())
def test_each_task_of_a_cluster_finds_itself_and_the_others_where_tensorflow_does(
    tasks: tuple[TaskId, ...], random: Any
) -> None:
    addresses, evaluators = addresses_of(tasks), sum(task.role == "evaluator" for task in tasks)
    asked = list_tasks(0, 0, evaluators) if evaluators else ()
    placements = []
    for task in tasks:
        roles = list(make_cluster(addresses).items())
        random.shuffle(roles)
        placements.append(found(task_environment(dict(roles), task), asked))
    assert tuple(placement.task for placement in placements) == tasks
    assert [placement.rank for placement in placements] == list(range(len(tasks)))
    assert {placement.tasks for placement in placements} == {tasks}
    assert all(placement.addresses == addresses for placement in placements)
    assert len({placement.scheduler for placement in placements}) == 1, (
        "the order in which roles are written says nothing"
    )


CLUSTER = make_cluster({CHIEF: "a:1", WORKER: "b:1", OTHER: "b:2", PS: "c:1"})


def test_a_cluster_is_told_apart_from_another_by_its_addresses() -> None:
    other = CLUSTER | {"ps": ["d:1"]}
    identities = {found(in_cluster(cluster, "chief")).scheduler for cluster in (CLUSTER, other)}
    assert len(identities) == 2
    assert all(identity.startswith("tf-config:") for identity in identities)


def test_a_member_of_a_cluster_knows_its_own_host_and_where_to_find_the_chief() -> None:
    placement = found(in_cluster(CLUSTER, "worker", "1"))
    assert (placement.task, placement.host, placement.coordinator) == (OTHER, "b", "a:2223")
    assert found(in_cluster(CLUSTER, "ps", PROCSV_PORT="4000")).coordinator == "a:4000"
    six = {"worker": ["[::1]:1", "[::1]:2"]}
    assert found(in_cluster(six, "worker", PROCSV_PORT="2223")).coordinator == "[::1]:2223"
    assert "PROCSV_PORT is 70000" in refusal(in_cluster(CLUSTER, "ps", PROCSV_PORT="70000"))


def test_tf_config_takes_precedence_over_slurm_and_slurm_over_a_jobset() -> None:
    pod, step = in_pod(PS), in_step(0, 4)
    assert found(pod | step | in_cluster(CLUSTER, "ps"), GROUP).kind == "tf-config"
    assert found(pod | step, GROUP).kind == "slurm"
    assert found(pod, GROUP).kind == "indexed-job"
    assert found(pod | step | in_cluster(CLUSTER, "ps"), GROUP, "indexed-job").kind == "indexed-job"


def test_options_that_agree_with_the_cluster_change_nothing_and_others_are_refused() -> None:
    assert found(in_cluster(CLUSTER, "ps"), GROUP) == found(in_cluster(CLUSTER, "ps"))
    text = refusal(in_cluster(CLUSTER, "ps"), list_tasks(3, 0, 0))
    assert text.startswith("TF_CONFIG")
    assert "4 (1 chief, 2 workers, 1 ps), --workers 3 makes 4 (1 chief, 3 workers)" in text


def test_evaluators_are_in_no_cluster_and_every_launch_must_be_given_their_number() -> None:
    asked = list_tasks(0, 0, 1)
    evaluator = found(in_cluster(CLUSTER, "evaluator", HOSTNAME="far"), asked)
    assert (evaluator.task, evaluator.rank, evaluator.host) == (EVALUATOR, 4, "far")
    assert found(in_cluster(CLUSTER, "chief"), asked).tasks == evaluator.tasks == (*GROUP, EVALUATOR)
    assert found(in_cluster({"chief": ["a:1"]}, "chief"), asked).tasks == (CHIEF, EVALUATOR)
    assert "give --evaluators 2 to all launches" in refusal(in_cluster(CLUSTER, "evaluator", 1), asked)
    inside = CLUSTER | {"evaluator": ["e:1"]}
    assert found(in_cluster(inside, "evaluator")).tasks == (*GROUP, EVALUATOR)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"cluster": {}, "task": {"type": "worker", "index": 0}, "environment": "cloud"}',
        json.dumps({"cluster": CLUSTER}),
    ],
)
def test_a_tf_config_without_a_cluster_or_a_task_is_ignored_unless_it_is_asked_for(text: str) -> None:
    assert find_placement("auto", {"TF_CONFIG": text}, ()) is None
    assert "TF_CONFIG" in refusal({"TF_CONFIG": text}, (), "tf-config")


def test_a_cluster_of_one_task_is_a_run_of_one_task() -> None:
    assert find_placement("auto", in_cluster({"worker": ["a:1"]}, "worker"), ()) is None
    assert find_placement("tf-config", in_cluster({"chief": ["a:1"]}, "chief"), ()) is None


@pytest.mark.parametrize("text", ["{", "[]", "chief", '{"cluster": {"worker": "a:1"}, "task": {"type": "worker"}}'])
def test_an_unreadable_tf_config_is_one_error_that_shows_its_form(text: str) -> None:
    said = refusal({"TF_CONFIG": text})
    assert said.startswith("TF_CONFIG")
    assert '"task": {"type": "worker", "index": 0}' in said
    assert find_placement("local", {"TF_CONFIG": text}, GROUP) is None, "nobody has to mend what is not used"


@pytest.mark.parametrize(
    ("cluster", "role", "index", "words"),
    [
        (CLUSTER, "worker", 2, "(chief: a:1, ps: c:1, worker: b:1 b:2)"),
        ({"worker": ["b:1"]}, "ps", 0, "ps 0"),
        (CLUSTER, "worker", -1, "the index '-1'"),
        (CLUSTER, "worker", "one", "the index 'one'"),
        (CLUSTER, "master", 0, "type 'master'"),
        ({"master": ["a:1"], "worker": ["b:1"]}, "worker", 0, "type 'master'"),
        ({"chief": ["a:1", "a:2"]}, "chief", 0, "2 chiefs"),
        ({"ps": ["a:1", "a:2"]}, "ps", 0, "neither"),
        ({"worker": ["a:1", "a"]}, "worker", 0, "address 'a'"),
        ({"worker": ["a:1", "a:0"]}, "worker", 0, "'a:0'"),
        ({"worker": ["a:1"], "ps": ["a:1"]}, "worker", 0, "a:1 2 times"),
    ],
)  # fmt: skip
def test_an_impossible_cluster_is_refused_naming_what_is_wrong(
    cluster: dict[str, Any], role: str, index: object, words: str
) -> None:
    said = refusal(in_cluster(cluster, role, index))
    assert words in said
    assert "--cluster local" in said


# -- JobSets -----------------------------------------------------------------------------------------------------
@given(group())
def test_each_pod_knows_itself_by_the_name_that_the_others_use(tasks: tuple[TaskId, ...]) -> None:
    placements = {task: found(in_pod(task), tasks) for task in tasks}
    assert [placement.task for placement in placements.values()] == list(tasks)
    assert len({placement.host for placement in placements.values()}) == len(tasks)
    for placement in placements.values():
        assert placement.tasks == tasks
        assert placement.addresses == {
            task: f"{other.host}:2222" for task, other in placements.items() if needs_address(task)
        }
        assert placement.coordinator == f"{placements[tasks[0]].host}:2223"


def test_a_pod_is_named_as_its_jobset_names_it() -> None:
    placement = found(in_pod(OTHER), GROUP)
    assert (placement.kind, placement.host, placement.scheduler) == (
        "indexed-job",
        "digits-worker-0-1.digits",
        "k8s:digits:0",
    )
    told = {"PROCSV_JOBSET_UID": "4f1c", "PROCSV_JOBSET_ATTEMPT": "3", "PROCSV_SUBDOMAIN": "net", "PROCSV_PORT": "7000"}
    placement = found(in_pod(OTHER, **told), GROUP)
    assert (placement.host, placement.scheduler) == ("digits-worker-0-1.net", "k8s:4f1c:3")
    assert placement.coordinator == "digits-chief-0-0.net:7000"


def test_a_pod_that_the_options_do_not_include_is_refused_naming_the_tasks_they_make() -> None:
    said = refusal(in_pod(TaskId("worker", 2)), GROUP)
    for words in ("worker.2 by PROCSV_TASK_TYPE and JOB_COMPLETION_INDEX", "--workers 2 --ps 1 make 4 ("):
        assert words in said
    assert "this pod is ps.0" in refusal(in_pod(PS))
    assert "number 1" in refusal(in_pod(TaskId("chief", 1)), GROUP)
    assert "PROCSV_TASK_TYPE is 'driver'" in refusal(in_pod(TaskId("driver")), GROUP)
    assert "PROCSV_JOBSET" in refusal(in_pod(PS) | {"PROCSV_JOBSET": ""}, GROUP)


def test_a_pod_without_a_role_and_a_jobset_of_one_pod_are_local() -> None:
    assert find_placement("auto", {"JOB_COMPLETION_INDEX": "0"}, ()) is None
    assert find_placement("auto", in_pod(CHIEF), ()) is None
    assert "PROCSV_TASK_TYPE" in refusal({"JOB_COMPLETION_INDEX": "0"}, GROUP, "indexed-job")


def test_when_a_run_restarts_a_pod_keeps_its_environments_place_and_other_launches_get_a_new_one() -> None:
    pod, step = found(in_pod(OTHER), GROUP), found(in_step(0, 4), GROUP)

    assert pod.follow(OTHER, ()) is None
    assert (told := step.follow(PS, ())) is not None
    assert (told.scheduler, told.task, told.spares) == (step.scheduler, PS, ())


# -- all environments --------------------------------------------------------------------------------------------
def test_a_launch_from_within_a_task_of_another_run_is_local() -> None:
    everything = in_step(0, 4) | in_cluster(CLUSTER, "ps") | in_pod(PS)
    assert find_placement("auto", everything | {"PROCSV_ROLE": "ps.0"}, GROUP) is None


def test_an_environment_without_any_scheduler_is_local() -> None:
    assert find_placement("auto", {}, GROUP) is None
    assert find_placement("local", in_step(0, 4) | in_cluster(CLUSTER, "ps") | in_pod(PS), GROUP) is None


@given(
    st.sampled_from(CLUSTERS),
    st.dictionaries(
        st.sampled_from([*LAST_OF_THREE, *in_pod(PS), "TF_CONFIG", "PROCSV_PORT", "SLURM_RESTART_COUNT"]),
        st.sampled_from(["0", "1", "4", "-1", "²", "worker", '{"cluster": {"worker": ["a:1"]}, "task": 1}'])
        | st.text(),
    ),
    st.sampled_from([(), GROUP]),
)
def test_any_environment_gives_a_placement_or_a_refusal(
    cluster: str, environment: dict[str, str], tasks: tuple[TaskId, ...]
) -> None:
    with contextlib.suppress(UserError):
        placement = find_placement(cluster, environment, tasks)
        assert placement is None or placement.task == placement.tasks[placement.rank]
