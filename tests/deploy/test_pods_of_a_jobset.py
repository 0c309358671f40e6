"""The commands of the JobSet's manifest work under a stand-in for the kubelet. No cluster has run
them.

Each pod has its own network, processes and memory. The claim, the Secret and the JobSet's host
names are shared. All pods run on one kernel, so locks on the claim show which pod is dead;
tests/run/test_machines_replaced.py covers a pod on another node.
"""

from __future__ import annotations

import json
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from procsv.base import exit_codes
from procsv.base.identity import TaskId
from procsv.testing.run import Run
from tests.support import own_machines
from tests.support.kubelet_stand_in import DISRUPTED, Node, Pod
from tests.support.manifests import Manifest, jobs_of, load_manifest
from tests.support.own_machines import OwnMachine

pytestmark = [pytest.mark.fault, pytest.mark.long]

JOBSET = load_manifest("jobset.yaml", "JobSet")
NAME = JOBSET["metadata"]["name"]
TRAIN = "from tests.support.numpy_training import train_chief\n\ntrain_chief({save_s})\n"


class Pods:
    """The pods of one JobSet by task."""

    def __init__(self, volumes: Path, machines: list[OwnMachine]) -> None:
        self._volumes, self._free, self._names = volumes, list(machines), volumes / "hosts"
        self._addresses: dict[str, str] = {}
        self._names.write_text("127.0.0.1 localhost\n")
        secret = volumes / f"secret-{NAME}" / "secret"
        secret.parent.mkdir()
        secret.write_bytes(secrets.token_bytes(32))
        secret.chmod(0o600)
        self.of: dict[str, Pod] = {}
        self.configure("10m", 0.5)  # too long for anything to have waited for the peer timeout

    def configure(self, peer_timeout: str, save_s: float) -> None:
        (self._volumes / "train.py").write_text(TRAIN.format(save_s=save_s))
        settings = f'peer-timeout = "{peer_timeout}"\ncoordinator-timeout = "20m"'
        (self._volumes / "pyproject.toml").write_text(f"[tool.procsv]\n{settings}\n")

    @staticmethod
    def name_of(task: TaskId) -> str:
        """Return the name by which the others find it."""
        return f"{NAME}-{task.role}-0-{task.index}.{NAME}"

    @property
    def tasks(self) -> dict[TaskId, Manifest]:
        """Return each task with its Job."""
        return {
            TaskId(role, index): job
            for role, job in jobs_of(JOBSET).items()
            for index in range(job["spec"]["completions"])
        }

    def start(self, task: TaskId) -> Pod:
        """Start a pod on a fresh node. It gets the name of the previous pod."""
        machine = self._free.pop()
        self._addresses[self.name_of(task)] = machine.address
        lines = [f"{address} {name}" for name, address in self._addresses.items()]
        self._names.write_text(
            "\n".join(("127.0.0.1 localhost", *lines, ""))
        )  # the same file: all pods have it mounted
        labels = {
            "jobset.sigs.k8s.io/replicatedjob-name": task.role,
            "jobset.sigs.k8s.io/jobset-name": NAME,
            "jobset.sigs.k8s.io/jobset-uid": "8f3c",
            "jobset.sigs.k8s.io/restart-attempt": "0",
        }
        job, node = self.tasks[task], Node(machine, self._names)
        pod = self.of[str(task)] = Pod(job, self._volumes, labels=labels, index=task.index, node=node)
        return pod

    def start_all(self) -> Pod:
        """Start all pods. Return the chief's."""
        for task in self.tasks:
            self.start(task)
        return self.of["chief"]


@pytest.fixture
def pods(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pods]:
    """Run pods on that many nodes."""
    if why := own_machines.why_not():
        pytest.skip(why)
    with own_machines.own_machines(request.param) as machines:
        yield Pods(tmp_path, machines)


@pytest.mark.parametrize("pods", [5], indirect=True)
def test_pods_find_each_other_by_name_a_lost_one_is_replaced_alone_and_all_complete(
    pods: Pods,
) -> None:
    chief = pods.start_all()
    assert set(pods.of) == {"chief", "worker.0", "worker.1", "ps.0"}
    (started,) = chief.run.wait_event("run_started")
    assert set(started["hosts"]) == set(pods.of)
    chief.run.wait_event("recovered", role="chief")
    for task in ("worker.0", "worker.1", "ps.0"):
        chief.run.wait_event("spawned", role=task)

    trains, lost = chief.run.pid("chief"), pods.of["worker.1"]
    code = lost.lose()
    assert (lost.fate(code), lost.fate(code, DISRUPTED)) == ("replaced, and counted", "replaced")
    pods.start(TaskId("worker", 1))

    (news,) = chief.run.wait_event("member_replaced")
    assert news["role"] == "worker.1"
    chief.run.wait_event("spawned", 2, "worker.1")
    chief.run.wait_step(chief.run.step() + 50)
    assert chief.run.pid("chief") == trains
    assert not chief.run.events("member_lost")
    (chief.run.logdir / "end").touch()
    codes = {task: pod.wait_end() for task, pod in pods.of.items()}
    assert codes == dict.fromkeys(pods.of, 0), chief.run.said()
    assert {pod.fate(codes[task]) for task, pod in pods.of.items()} == {"complete"}


@pytest.mark.parametrize("pods", [8], indirect=True)
def test_pods_that_are_all_asked_to_end_save_within_their_grace_period_and_their_successors_resume(pods: Pods) -> None:
    chief = pods.start_all()
    chief.run.wait_event("recovered", role="chief")
    first = dict(pods.of)

    for pod in first.values():
        pod.tell(signal.SIGTERM)
    codes = {task: pod.delete() for task, pod in first.items()}

    assert codes == dict.fromkeys(first, exit_codes.RESUMABLE), chief.run.said()
    assert {pod.fate(codes[task]) for task, pod in first.items()} == {"replaced"}
    (stopped,) = chief.run.events("stopped")
    assert stopped["durable_step"] == stopped["step"] > 0

    again = pods.start_all()
    recovered = again.run.wait_event("recovered", 2, "chief")[-1]
    assert recovered["step"] == stopped["step"]
    (again.run.logdir / "end").touch()
    assert {pod.wait_end() for pod in pods.of.values()} == {0}, again.run.said()


@pytest.mark.parametrize("pods", [6], indirect=True)
def test_when_a_chiefs_node_is_lost_its_memory_is_fetched_from_another_pod_by_name(
    pods: Pods,
) -> None:
    pods.configure("10s", 86_400.0)
    chief = pods.start_all()
    chief.run.wait_event("mirror_kept")
    chief.run.wait_for("a copy", lambda: mirrored(chief.run) > 0)
    step = mirrored(chief.run)
    lost = (TaskId("chief", 0), TaskId("ps", 0))  # surviving servers would have the newest state

    for task in lost:
        pods.of[str(task)].lose()
    for task in lost:
        pods.start(task)

    again = pods.of["chief"]
    recovered = again.run.wait_event("recovered", 2, "chief")[-1]
    assert (recovered["source"], recovered["step"] >= step) == ("memory", True), again.run.said()
    (fetched,) = again.run.events("mirror_fetched")
    assert fetched["host"] == pods.name_of(TaskId("worker", 0))
    (again.run.logdir / "end").touch()
    assert {pod.wait_end() for pod in pods.of.values()} == {0}, again.run.said()


def mirrored(run: Run) -> int:
    return int(json.loads((run.logdir / "procsv" / "run.json").read_text())["mirror_step"])
