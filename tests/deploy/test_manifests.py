"""The Kubernetes manifests are valid and match what procsv does.

No cluster has run them. Jobs and policies are checked against the published schemas of several
releases, and the JobSet against the fields and words of its reference. Further checks cover rules
outside of any schema that make the API server, the JobSet's webhook or Pod Security refuse a
manifest.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from kubernetes_validate.utils import all_versions

from procsv.base import exit_codes
from procsv.base.schedulers import indexed_job
from procsv.base.units import parse_duration
from tests.support.manifests import DEPLOY, Manifest, container_of, jobs_of, load_manifest, option, pod_of

NAMES = {"job.yaml": "Job", "jobset.yaml": "JobSet"}
OLDEST = "1.30"  # the oldest release that the manifests claim to support
NEWEST = list(dict.fromkeys(version.rpartition(".")[0] for version in all_versions()))[-3:]
VOLUMES = ("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret")
CONTEXT = {  # security context fields: each is judged below by "restricted" or left to all
    *("runAsNonRoot", "runAsUser", "runAsGroup", "fsGroup", "fsGroupChangePolicy", "seccompProfile"),
    *("allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities"),
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
JOBSET = fields(  # the fields of jobset.x-k8s.io/v1alpha2 in the manifest; its jobs are checked as Jobs
    *("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata=fields("name", name=NAME),
    spec=fields(
        "replicatedJobs",
        ttlSecondsAfterFinished=NUMBER,
        network=fields(enableDNSHostnames=BOOL, publishNotReadyAddresses=BOOL, subdomain=NAME),
        successPolicy=fields("operator", operator={"enum": ["All", "Any"]}, targetReplicatedJobs=list_of(NAME)),
        failurePolicy=fields(
            maxRestarts=NUMBER,
            rules=list_of(
                fields(
                    *("name", "action"),
                    name={
                        "type": "string",
                        "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                        "maxLength": 128,
                    },
                    action={"enum": list(JOBSET_ACTIONS)},
                    onJobFailureReasons=list_of({"enum": list(JOB_FAILURES)}),
                    targetReplicatedJobs=list_of(NAME),
                )
            ),
        ),
        replicatedJobs=list_of(
            fields(*("name", "template"), name=NAME, replicas=NUMBER, template=fields("spec", spec={"type": "object"}))
        ),
    ),
)


def check_schema(manifest: Manifest, version: str = OLDEST) -> list[str]:
    """Check a manifest and a JobSet's jobs strictly: an unknown field is an error."""
    found = []
    if manifest["kind"] == "JobSet":
        found += [
            f"{error.json_path}: {error.message}"
            for error in jsonschema.Draft202012Validator(JOBSET).iter_errors(manifest)
        ]
    for part in [manifest] if manifest["kind"] == "NetworkPolicy" else jobs_of(manifest).values():
        try:
            kubernetes_validate.validate(part, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(f"{error.json_path}: {error.message}")
    return found


# -- rules outside of the schemas --------------------------------------------------------------------------------
def check_rules(manifest: Manifest) -> list[str]:
    jobs = jobs_of(manifest)
    wrong = [f"{name}: {text}" for name, job in jobs.items() for text in check_job(job)]
    policies = [manifest["spec"].get("successPolicy", {}), *manifest["spec"].get("failurePolicy", {}).get("rules", ())]
    named = {name for policy in policies for name in policy.get("targetReplicatedJobs", ())}
    return [*wrong, *(f"there is no job {name}" for name in sorted(named - set(jobs)))]


def check_job(job: Manifest) -> Iterator[str]:
    pod, policy = pod_of(job), job["spec"].get("podFailurePolicy")
    yield from check_restricted(pod)
    if policy and pod.get("restartPolicy") != "Never":
        yield "podFailurePolicy demands restartPolicy Never"
    for rule in policy["rules"] if policy else ():
        codes = rule.get("onExitCodes", {})
        if codes.get("operator") == "In" and 0 in codes["values"]:
            yield "exit code 0 is no failure"
    mounted = {mount["name"] for container in pod["containers"] for mount in container.get("volumeMounts", ())}
    for name in sorted(mounted ^ {volume["name"] for volume in pod.get("volumes", ())}):
        yield f"{name} is not both a volume and mounted"


def check_restricted(pod: Manifest) -> Iterator[str]:
    """Check for what Pod Security "restricted", which includes "baseline", refuses in a Linux pod."""
    for word in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(word):
            yield f"{word} is set"
    for volume in pod.get("volumes", ()):
        if kinds := volume.keys() - {"name", *VOLUMES}:
            yield f"volume {volume['name']} is of the kind {kinds.pop()}"
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        yield from check_context(pod.get("securityContext", {}), container.get("securityContext", {}))
        if any("hostPort" in port for port in container.get("ports", ())):
            yield "hostPort is set"
        if any(hook.get("host") for hook in container.get("lifecycle", {}).values()):
            yield "a hook names a host"


def check_context(of_pod: Manifest, of_container: Manifest) -> Iterator[str]:
    said = of_pod | of_container  # the container's settings win
    if unknown := said.keys() - CONTEXT:
        yield f"{', '.join(sorted(unknown))} is not looked at here"
    if said.get("runAsNonRoot") is not True or said.get("runAsUser") == 0:
        yield "it may run as root"
    if said.get("allowPrivilegeEscalation") is not False:
        yield "it may get more rights"
    capabilities = said.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", ()) or {*capabilities.get("add", ())} - {"NET_BIND_SERVICE"}:
        yield "it has capabilities"
    if said.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "it has no seccomp profile"


@pytest.mark.parametrize("version", [OLDEST, *NEWEST])
@pytest.mark.parametrize("name", NAMES)
def test_a_manifest_is_accepted_by_the_api_schemas(name: str, version: str) -> None:
    for manifest in (load_manifest(name, NAMES[name]), load_manifest(name, "NetworkPolicy")):
        assert not check_schema(manifest, version)
    assert not check_rules(load_manifest(name, NAMES[name]))
    assert f"Kubernetes {OLDEST} or newer" in (DEPLOY / name).read_text()


def job_in(manifest: Manifest) -> Any:
    return manifest["spec"]["replicatedJobs"][0]["template"]["spec"]


def pod_in(manifest: Manifest) -> Any:
    return job_in(manifest)["template"]["spec"]


def context_in(manifest: Manifest) -> Any:
    return pod_in(manifest)["containers"][0]["securityContext"]


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
    ("a mount has no volume", lambda m: pod_in(m)["volumes"].pop(), "tmp is not both"),
    ("a volume is not mounted", lambda m: pod_in(m)["containers"][0]["volumeMounts"].pop(), "tmp is not both"),
    ("root may run", lambda m: pod_in(m)["securityContext"].update(runAsUser=0), "may run as root"),
    ("anybody may run", lambda m: context_in(m).update(runAsNonRoot=False), "may run as root"),
    ("rights may grow", lambda m: context_in(m).pop("allowPrivilegeEscalation"), "may get more rights"),
    ("capabilities stay", lambda m: context_in(m)["capabilities"].update(drop=["KILL"]), "has capabilities"),
    ("a capability is added", lambda m: context_in(m)["capabilities"].update(add=["SYS_PTRACE"]), "has capabilities"),
    ("no seccomp", lambda m: pod_in(m)["securityContext"]["seccompProfile"].update(type="Unconfined"), "no seccomp"),
    ("all rights", lambda m: context_in(m).update(privileged=True), "privileged is not looked at"),
    ("the node's network", lambda m: pod_in(m).update(hostNetwork=True), "hostNetwork is set"),
    ("a port of the node", lambda m: pod_in(m)["containers"][0]["ports"][0].update(hostPort=2222), "hostPort is set"),
    (
        "a directory of the node",
        lambda m: pod_in(m)["volumes"].append({"name": "runs", "hostPath": {"path": "/"}}),
        "runs is of the kind hostPath",
    ),
    (
        "a job is not there",
        lambda m: m["spec"]["successPolicy"].update(targetReplicatedJobs=["boss"]),
        "there is no job boss",
    ),
]


@pytest.mark.parametrize(("plant", "found"), [row[1:] for row in PLANTED], ids=[row[0] for row in PLANTED])
def test_the_schema_check_finds_an_error_in_a_manifest(plant: Callable[[Manifest], object], found: str) -> None:
    manifest = copy.deepcopy(load_manifest("jobset.yaml", "JobSet"))
    plant(manifest)
    assert any(found in text for text in (*check_schema(manifest), *check_rules(manifest)))


# -- procsv's needs ----------------------------------------------------------------------------------------------
JOBS = [
    pytest.param(job, id=f"{name}:{part}")
    for name, kind in NAMES.items()
    for part, job in jobs_of(load_manifest(name, kind)).items()
]


@pytest.mark.parametrize("job", JOBS)
def test_a_pod_is_replaced_when_that_helps_and_never_while_the_old_one_lives(job: Manifest) -> None:
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
    assert mounts["/tmp"]["emptyDir"] == {}, "the root is read-only"
    logdir = Path(option(argv, "--logdir"))
    assert any("persistentVolumeClaim" in mounts.get(str(parent), {}) for parent in logdir.parents)
    assert pod["automountServiceAccountToken"] is False
    assert "ephemeral-storage" in container["resources"]["requests"]


@pytest.mark.parametrize(("name", "kind"), NAMES.items())
def test_finished_pods_are_removed_and_hangs_are_left_to_procsv(name: str, kind: str) -> None:
    manifest = load_manifest(name, kind)
    assert manifest["spec"]["ttlSecondsAfterFinished"] > 0
    assert not any(word.endswith("Probe") for job in jobs_of(manifest).values() for word in container_of(job))
    said = (DEPLOY / name).read_text()
    assert all(word in said for word in ("No probes: ", "no PodDisruptionBudget: ", '{"spec": {"suspend": true}}'))


def test_the_jobset_has_a_pod_for_each_task_on_its_command_line() -> None:
    jobs = jobs_of(load_manifest("jobset.yaml", "JobSet"))
    argv = container_of(jobs["chief"])["command"] + container_of(jobs["chief"])["args"]
    asked = {"chief": 1, "worker": int(option(argv, "--workers")), "ps": int(option(argv, "--ps"))}
    assert {name: job["spec"]["completions"] for name, job in jobs.items()} == asked
    for job in jobs.values():
        assert job["spec"]["completionMode"] == "Indexed"
        assert job["spec"]["parallelism"] == job["spec"]["completions"]
        assert pod_of(job) == pod_of(jobs["chief"]), "one command line for all"


def test_the_pods_get_the_variables_that_procsv_reads() -> None:
    for job in jobs_of(load_manifest("jobset.yaml", "JobSet")).values():
        variables = {variable["name"]: variable for variable in container_of(job)["env"]}
        read = set(re.findall(r"^    (PROCSV_\w+) ", indexed_job.__doc__ or "", re.MULTILINE))
        assert set(variables) - {"HOME"} == read - {"PROCSV_SUBDOMAIN"}
        for name, label in (
            ("PROCSV_TASK_TYPE", "replicatedjob-name"),
            ("PROCSV_JOBSET", "jobset-name"),
            ("PROCSV_JOBSET_UID", "jobset-uid"),
            ("PROCSV_JOBSET_ATTEMPT", "restart-attempt"),
        ):
            path = variables[name]["valueFrom"]["fieldRef"]["fieldPath"]
            assert path == f"metadata.labels['{LABEL}/{label}']"


def test_the_jobsets_keys_derive_from_a_secret_that_all_pods_have() -> None:
    for job in jobs_of(load_manifest("jobset.yaml", "JobSet")).values():
        file = Path(option(container_of(job)["command"], "--secret-file"))
        (mount,) = (m for m in container_of(job)["volumeMounts"] if m["mountPath"] == str(file.parent))
        (volume,) = (v for v in pod_of(job)["volumes"] if v["name"] == mount["name"])
        assert volume["secret"]["defaultMode"] == 0o400
        assert pod_of(job)["securityContext"]["fsGroup"], "else only root reads it"
        assert "subPath" not in mount, "else its mode is that of a file of the user's"


def test_only_the_jobsets_pods_reach_its_ports() -> None:
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


def test_nothing_reaches_the_jobs_pod() -> None:
    job, policy = load_manifest("job.yaml", "Job"), load_manifest("job.yaml", "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == job["spec"]["template"]["metadata"]["labels"]
    assert policy["policyTypes"] == ["Ingress"]
    assert "ingress" not in policy
