"""Read which task a pod of an indexed Kubernetes Job is, and how the other pods are named.

Pure; procsv/base/placement.py calls it.  The manifest (procsv/examples/deploy/jobset.yaml) sets
these variables, most of them from the pod's labels:

    JOB_COMPLETION_INDEX   the pod's index; Kubernetes sets it in every indexed Job
    PROCSV_TASK_TYPE       chief, worker, ps or evaluator:
                           the label jobset.sigs.k8s.io/replicatedjob-name
    PROCSV_JOBSET          the JobSet's name: the label jobset.sigs.k8s.io/jobset-name
    PROCSV_JOBSET_UID      distinguishes JobSets of one name; may be missing:
                           the label jobset.sigs.k8s.io/jobset-uid
    PROCSV_JOBSET_ATTEMPT  how often the JobSet restarted; 0 if missing:
                           the label jobset.sigs.k8s.io/restart-attempt
    PROCSV_SUBDOMAIN       of the pods' names, if the manifest's network.subdomain
                           is not the JobSet's name
    PROCSV_PORT            for messages between procsv's own processes; 2223 if missing

Jobs without a JobSet also work.  They must be named like a JobSet's (NAME-worker-0), and a headless
Service must have the subdomain.
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
    identity: str  # changes when the whole JobSet restarts; differs between JobSets of one name

    def host_of(self, task: TaskId) -> str:
        """Returns the host name of `task` for other pods, even after its pod was replaced."""
        return f"{self.jobset}-{task.role}-0-{task.index}.{self.subdomain}"


def says_a_task(environment: Environment) -> bool:
    """Whether the pod is a task in a run of several pods.

    Each pod of any other indexed Job is a run of its own.
    """
    return bool(environment.get(INDEX) and environment.get(TYPE))


def read_pod(environment: Environment) -> Pod:
    """Reads the description of this pod; UserError if the manifest lacks something."""
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
