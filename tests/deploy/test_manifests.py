"""The Kubernetes manifests are what the API takes, as far as that can be known without a cluster, and fit what procsv does.

No cluster has seen them.  Jobs and policies are held to the release's own definitions, and the JobSet around them to the fields and
words of its reference; then to rules that no schema has, by which the API server or the JobSet's webhook would refuse them.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from procsv.base import exit_codes
from procsv.base.schedulers import indexed_job
from procsv.base.units import parse_duration
from tests.support.manifests import Manifest, container_of, jobs_of, load_manifest, option, pod_of

NAMES = {"job.yaml": "Job", "jobset.yaml": "JobSet"}
DEFINITIONS = json.loads(Path(__file__).with_name("kubernetes-1.37.json").read_text())["$defs"]
SCHEMAS = {
    "Job": "io.k8s.api.batch.v1.Job",
    "NetworkPolicy": "io.k8s.api.networking.v1.NetworkPolicy",
}
LABEL = "jobset.sigs.k8s.io"
JOB_FAILURES = (
    "BackoffLimitExceeded",
    "DeadlineExceeded",
    "FailedIndexes",
    "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
)
JOBSET_ACTIONS = ("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob")


# -- schemas -----------------------------------------------------------------------------------------------------
def fields(*required: str, **types: Any) -> dict[str, Any]:
    return {"type": "object", "properties": types, "required": list(required), "additionalProperties": False}


def list_of(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


NUMBER, BOOL = {"type": "integer", "minimum": 0}, {"type": "boolean"}
NAME = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}
JOB_SPEC = {"$ref": "#/$defs/io.k8s.api.batch.v1.JobSpec"}
JOBSET = fields(  # of jobset.x-k8s.io/v1alpha2, the fields that the manifest uses
    *("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata=fields("name", name=NAME),
    spec=fields(
        "replicatedJobs",
        network=fields(enableDNSHostnames=BOOL, publishNotReadyAddresses=BOOL, subdomain=NAME),
        successPolicy=fields("operator", operator={"enum": ["All", "Any"]}, targetReplicatedJobs=list_of(NAME)),
        failurePolicy=fields(
            maxRestarts=NUMBER,
            rules=list_of(
                fields(
                    *("name", "action"),
                    name={"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", "maxLength": 128},
                    action={"enum": list(JOBSET_ACTIONS)},
                    onJobFailureReasons=list_of({"enum": list(JOB_FAILURES)}),
                    targetReplicatedJobs=list_of(NAME),
                )
            ),
        ),
        replicatedJobs=list_of(
            fields(*("name", "template"), name=NAME, replicas=NUMBER, template=fields("spec", spec=JOB_SPEC))
        ),
    ),
)


def check_schema(manifest: Manifest) -> list[str]:
    schema = JOBSET if manifest["kind"] == "JobSet" else {"$ref": f"#/$defs/{SCHEMAS[manifest['kind']]}"}
    validator = jsonschema.Draft202012Validator(schema | {"$defs": DEFINITIONS})
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]


# -- rules that the schemas do not have --------------------------------------------------------------------------
def check_rules(manifest: Manifest) -> list[str]:
    jobs = jobs_of(manifest)
    wrong = [f"{name}: {text}" for name, job in jobs.items() for text in check_job(job)]
    policies = [manifest["spec"].get("successPolicy", {}), *manifest["spec"].get("failurePolicy", {}).get("rules", ())]
    named = {name for policy in policies for name in policy.get("targetReplicatedJobs", ())}
    return [*wrong, *(f"there is no job {name}" for name in sorted(named - set(jobs)))]


def check_job(job: Manifest) -> Iterator[str]:
    pod, policy = pod_of(job), job["spec"].get("podFailurePolicy")
    if policy and pod.get("restartPolicy") != "Never":
        yield "podFailurePolicy demands restartPolicy Never"
    for rule in policy["rules"] if policy else ():
        codes = rule.get("onExitCodes", {})
        if codes.get("operator") == "In" and 0 in codes["values"]:
            yield "exit code 0 is no failure"
    mounted = {mount["name"] for container in pod["containers"] for mount in container.get("volumeMounts", ())}
    for name in sorted(mounted ^ {volume["name"] for volume in pod.get("volumes", ())}):
        yield f"{name} is not both a volume and mounted"


@pytest.mark.parametrize("name", NAMES)
def test_a_manifest_is_what_the_api_takes(name: str) -> None:
    for manifest in (load_manifest(name, NAMES[name]), load_manifest(name, "NetworkPolicy")):
        assert not check_schema(manifest)
    assert not check_rules(load_manifest(name, NAMES[name]))


def job_in(manifest: Manifest) -> Any:
    return manifest["spec"]["replicatedJobs"][0]["template"]["spec"]


def pod_in(manifest: Manifest) -> Any:
    return job_in(manifest)["template"]["spec"]


def codes_in(manifest: Manifest) -> Any:
    return job_in(manifest)["podFailurePolicy"]["rules"][1]["onExitCodes"]


PLANTED: list[tuple[str, Callable[[Manifest], object], str]] = [
    ("a field is misspelt", lambda m: pod_in(m).update(terminationGracePeriodSecond=60), "Second' was unexpected"),
    (
        "an action is none",
        lambda m: m["spec"]["failurePolicy"]["rules"][0].update(action="Restart"),
        "'Restart' is not",
    ),
    ("an exit code is text", lambda m: codes_in(m).update(values=["75"]), "'75' is not of type"),
    ("a variable is a number", lambda m: pod_in(m)["containers"][0]["env"][-1].update(value=1), "1 is not of type"),
    ("containers start again", lambda m: pod_in(m).update(restartPolicy="OnFailure"), "demands restartPolicy Never"),
    ("exit code 0 is a failure", lambda m: codes_in(m).update(values=[0]), "exit code 0"),
    ("a mount has no volume", lambda m: pod_in(m)["volumes"].pop(), "snapshots is not both"),
    ("a volume is not mounted", lambda m: pod_in(m)["containers"][0]["volumeMounts"].pop(), "snapshots is not both"),
    (
        "a job is not there",
        lambda m: m["spec"]["successPolicy"].update(targetReplicatedJobs=["boss"]),
        "there is no job boss",
    ),
]


@pytest.mark.parametrize(("plant", "found"), [row[1:] for row in PLANTED], ids=[row[0] for row in PLANTED])
def test_an_error_in_a_manifest_is_found(plant: Callable[[Manifest], object], found: str) -> None:
    manifest = copy.deepcopy(load_manifest("jobset.yaml", "JobSet"))
    plant(manifest)
    assert any(found in text for text in (*check_schema(manifest), *check_rules(manifest)))


# -- what procsv needs of them -----------------------------------------------------------------------------------
JOBS = [
    pytest.param(job, id=f"{name}:{part}")
    for name, kind in NAMES.items()
    for part, job in jobs_of(load_manifest(name, kind)).items()
]


@pytest.mark.parametrize("job", JOBS)
def test_a_pod_is_replaced_where_that_helps_and_never_while_the_old_one_lives(job: Manifest) -> None:
    assert job["spec"]["podReplacementPolicy"] == "Failed"
    disrupted, resumable, permanent = job["spec"]["podFailurePolicy"]["rules"]
    assert (disrupted["action"], disrupted["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert (resumable["action"], resumable["onExitCodes"]["values"]) == ("Ignore", [exit_codes.RESUMABLE])
    codes = [exit_codes.USAGE, exit_codes.GAVE_UP, exit_codes.LOGDIR_UNUSABLE]
    assert (permanent["action"], permanent["onExitCodes"]["values"]) == ("FailJob", codes)


@pytest.mark.parametrize("job", JOBS)
def test_a_pod_has_time_to_save_memory_for_snapshots_and_a_logdir_that_outlives_it(job: Manifest) -> None:
    pod, container = pod_of(job), container_of(job)
    argv = container["command"] + container["args"]
    assert pod["terminationGracePeriodSeconds"] > parse_duration(option(argv, "--grace"))
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    logdir = Path(option(argv, "--logdir"))
    assert any("persistentVolumeClaim" in mounts.get(str(parent), {}) for parent in logdir.parents)
    assert pod["automountServiceAccountToken"] is False


def test_the_jobset_has_a_pod_for_each_task_that_its_command_line_asks_for() -> None:
    jobs = jobs_of(load_manifest("jobset.yaml", "JobSet"))
    argv = container_of(jobs["chief"])["command"] + container_of(jobs["chief"])["args"]
    asked = {"chief": 1, "worker": int(option(argv, "--workers")), "ps": int(option(argv, "--ps"))}
    assert {name: job["spec"]["completions"] for name, job in jobs.items()} == asked
    for job in jobs.values():
        assert job["spec"]["completionMode"] == "Indexed"
        assert job["spec"]["parallelism"] == job["spec"]["completions"]
        assert pod_of(job) == pod_of(jobs["chief"]), "one command line for all"


def test_the_pods_are_told_what_procsv_reads_of_them() -> None:
    for job in jobs_of(load_manifest("jobset.yaml", "JobSet")).values():
        variables = {variable["name"]: variable for variable in container_of(job)["env"]}
        read = set(re.findall(r"^    (PROCSV_\w+) ", indexed_job.__doc__ or "", re.MULTILINE))
        assert set(variables) == read - {"PROCSV_SUBDOMAIN"}
        for name, label in (
            ("PROCSV_TASK_TYPE", "replicatedjob-name"),
            ("PROCSV_JOBSET", "jobset-name"),
            ("PROCSV_JOBSET_UID", "jobset-uid"),
            ("PROCSV_JOBSET_ATTEMPT", "restart-attempt"),
        ):
            path = variables[name]["valueFrom"]["fieldRef"]["fieldPath"]
            assert path == f"metadata.labels['{LABEL}/{label}']"


def test_the_keys_of_the_jobset_follow_from_a_secret_that_all_pods_have() -> None:
    for job in jobs_of(load_manifest("jobset.yaml", "JobSet")).values():
        file = Path(option(container_of(job)["command"], "--secret-file"))
        (mount,) = (m for m in container_of(job)["volumeMounts"] if m["mountPath"] == str(file.parent))
        (volume,) = (v for v in pod_of(job)["volumes"] if v["name"] == mount["name"])
        assert "secret" in volume
        assert "subPath" not in mount, "else its mode is that of a file of the user's"


def test_only_the_pods_of_the_jobset_reach_its_ports() -> None:
    jobset, policy = load_manifest("jobset.yaml", "JobSet"), load_manifest("jobset.yaml", "NetworkPolicy")["spec"]
    pods = {"matchLabels": {f"{LABEL}/jobset-name": jobset["metadata"]["name"]}}
    (ingress,) = policy["ingress"]
    assert policy["podSelector"] == pods
    assert ingress["from"] == [{"podSelector": pods}]
    used = {
        indexed_job.TENSORFLOW_PORT,
        *(indexed_job.PROCSV_PORT + number for number in range(2)),
    }  # (curve_transport.py)
    assert {port["port"] for port in ingress["ports"]} == used
    for job in jobs_of(jobset).values():
        assert {port["containerPort"] for port in container_of(job)["ports"]} == used


def test_nobody_reaches_the_pod_of_the_job() -> None:
    job, policy = load_manifest("job.yaml", "Job"), load_manifest("job.yaml", "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == job["spec"]["template"]["metadata"]["labels"]
    assert policy["policyTypes"] == ["Ingress"]
    assert "ingress" not in policy
