"""A pod of an indexed Kubernetes Job, as its environment describes it: the names that a JobSet gives its pods.  Pure.

Called by procsv/base/placement.py.  The variables, which the manifest takes from the pod's labels (procsv/examples/deploy/jobset.yaml):

    JOB_COMPLETION_INDEX   the pod's index; Kubernetes sets it in every indexed Job
    PROCSV_TASK_TYPE       chief, worker, ps or evaluator: the label jobset.sigs.k8s.io/replicatedjob-name
    PROCSV_JOBSET          its name: the label jobset.sigs.k8s.io/jobset-name
    PROCSV_JOBSET_UID      tells it from an earlier one of that name: the label jobset.sigs.k8s.io/jobset-uid; may be missing
    PROCSV_JOBSET_ATTEMPT  how often all of it was started again: the label jobset.sigs.k8s.io/restart-attempt; 0 if missing
    PROCSV_SUBDOMAIN       of the pods' names, where the manifest's network.subdomain is not the JobSet's name
    PROCSV_PORT            on which procsv's own processes speak to each other; 2223 if missing

Jobs without a JobSet do as well, if their names are such as a JobSet gives (NAME-worker-0) and a headless Service has the subdomain.
"""

from __future__ import annotations

from typing import NamedTuple

from procsv.base.errors import UserError
from procsv.base.identity import TaskId
from procsv.base.schedulers.variables import Environment, read_number, read_port, read_text

TYPE, INDEX = "PROCSV_TASK_TYPE", "JOB_COMPLETION_INDEX"
TENSORFLOW_PORT, PROCSV_PORT = 2222, 2223
_ROLES = ("chief", "worker", "ps", "evaluator")
_HINT = "the manifest of a run of several pods sets it, as procsv/examples/deploy/jobset.yaml does"


class Pod(NamedTuple):
    """One pod of a JobSet."""

    task: TaskId
    jobset: str
    subdomain: str
    port: int
    identity: str  # another one when the JobSet is started again as a whole, and of another JobSet of the same name

    def host_of(self, task: TaskId) -> str:
        """The name by which the other pods find `task`'s, in whatever pod it is by now."""
        return f"{self.jobset}-{task.role}-0-{task.index}.{self.subdomain}"


def says_a_task(environment: Environment) -> bool:
    """Whether the pod has been told to be a task of a run of several pods; other indexed Jobs run one training each."""
    return bool(environment.get(INDEX) and environment.get(TYPE))


def read_pod(environment: Environment) -> Pod:
    """This pod; UserError if the manifest has not told all that is needed."""
    role, index = read_text(environment, TYPE, _HINT), read_number(environment, INDEX, _HINT)
    if role not in _ROLES:
        raise UserError(f"{TYPE} is {role!r}; name the jobs of the JobSet {', '.join(_ROLES)}")
    if role == "chief" and index:
        raise UserError(f"this pod is number {index} of the job chief, and there can be only one: give it 1 completion")
    jobset = read_text(environment, "PROCSV_JOBSET", _HINT)
    uid, attempt = environment.get("PROCSV_JOBSET_UID") or jobset, environment.get("PROCSV_JOBSET_ATTEMPT") or "0"
    return Pod(
        task=TaskId(role, index),
        jobset=jobset,
        subdomain=environment.get("PROCSV_SUBDOMAIN") or jobset,
        port=read_port(environment, "PROCSV_PORT") or PROCSV_PORT,
        identity=f"k8s:{uid}:{attempt}",
    )
