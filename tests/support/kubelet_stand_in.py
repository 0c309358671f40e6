"""Play the kubelet and the Job controller to a manifest's command, without a cluster, container or
network.

It starts a pod's command with the pod's variables, stops it as the kubelet does (SIGTERM, grace
period, SIGKILL), and reads the pod's fate from the Job's rules. A pod has its own directories and
an empty memory volume. Its other mounts (a claim, a Secret) are directories of the test, whose
paths replace the mount paths on the command line. Pods of a JobSet also have their own network,
processes and memory, and know each other by the names that a JobSet gives them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import psutil

from procsv.base.run.paths import find_paths
from procsv.testing.run import Run
from tests.support.launched import environment
from tests.support.manifests import Manifest, container_of, option, pod_of
from tests.support.own_machines import OwnMachine
from tests.support.programs import ROOT
from tests.support.sudden_end import end_at_once, with_variable
from tests.support.within import go_within

Fate = Literal["complete", "replaced", "replaced, and counted", "job failed"]
DISRUPTED = "DisruptionTarget"  # the condition of a preempted, drained or evicted pod


class Node(NamedTuple):
    """The machine that a pod of a JobSet runs on. All its pods resolve the JobSet's names from the file `names`."""

    machine: OwnMachine
    names: Path

    @property
    def launcher(self) -> tuple[str, ...]:
        """Return the command prefix that runs a command on this node."""
        mount = ("sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(self.names))
        return tuple(go_within(self.machine.within, mount))


class Pod:
    """One pod of a Job."""

    def __init__(
        self,
        job: Manifest,
        volumes: Path,
        *,
        labels: Mapping[str, str] | None = None,
        index: int = 0,
        node: Node | None = None,
    ) -> None:
        """Start the pod's program in `volumes`, which holds a directory for each claim and Secret
        and outlives the pod.

        `node` is a node of its own; None means this machine.
        """
        self.job, self._container, self._node = job, container_of(job), node
        self._claims = self._find_claims(volumes)
        self._local = Path(os.environ["XDG_RUNTIME_DIR"]) / f"pod-{len(list(volumes.glob('pod-*')))}"
        self._local.mkdir()
        output = volumes / f"{self._local.name}.out"
        argv = [self._place(word) for word in (*self._container["command"], *self._container["args"])]
        variables = {"JOB_COMPLETION_INDEX": str(index), **self._variables(labels or {})}
        with output.open("w") as said:
            process = subprocess.Popen(
                [*(node.launcher if node is not None else ()), sys.executable, "-m", *argv],
                cwd=volumes,
                env=environment(**variables, XDG_RUNTIME_DIR=str(self._local), PYTHONPATH=str(ROOT)),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.run = Run(Path(option(argv, "--logdir")), process, output)

    def delete(self) -> int:
        """Stop the pod as a drain does. Return its command's exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.tell(signal.SIGTERM)
            self.run.process.wait(pod_of(self.job)["terminationGracePeriodSeconds"])
        return self.lose()

    def lose(self) -> int:
        """End the whole pod at once, as the loss of its node does. Return the exit code, or 128
        plus the signal's number.
        """
        if self._node is not None:
            self._node.machine.send_signal(signal.SIGKILL)
        end_at_once(lambda: with_variable(XDG_RUNTIME_DIR=str(self._local)))
        code = self.run.wait_end()
        self._remove()
        return code if code >= 0 else 128 - code

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to the pod's command. On a node of its own, that is the child of the
        process that made the node.
        """
        with contextlib.suppress(psutil.Error):  # it has already exited
            started = psutil.Process(self.run.process.pid)
            for process in started.children() if self._node is not None else [started]:
                process.send_signal(number)

    def wait_end(self) -> int:
        """Wait until the command exits. Return its exit code."""
        self.run.wait_end()
        return self.lose()

    def fate(self, code: int, *conditions: str) -> Fate:
        """Return what the Job's rules do with a pod that exited with `code` or has one of `conditions`."""
        if code == 0:
            return "complete"
        fates: dict[str, Fate] = {"Ignore": "replaced", "Count": "replaced, and counted", "FailJob": "job failed"}
        for rule in self.job["spec"]["podFailurePolicy"]["rules"]:
            codes = rule.get("onExitCodes", {"operator": "In", "values": []})
            has_code = (code in codes["values"]) is (codes["operator"] == "In")
            if has_code or any(pattern["type"] in conditions for pattern in rule.get("onPodConditions", ())):
                return fates[rule["action"]]
        return "replaced, and counted"

    def _find_claims(self, volumes: Path) -> dict[str, Path]:
        """Return the test's directory for each mount path."""
        sources = {volume["name"]: {**volume} for volume in pod_of(self.job)["volumes"]}
        claims = {
            name: volumes / source["persistentVolumeClaim"]["claimName"]
            for name, source in sources.items()
            if "persistentVolumeClaim" in source
        } | {
            name: volumes / f"secret-{source['secret']['secretName']}"
            for name, source in sources.items()
            if "secret" in source
        }
        for directory in claims.values():
            directory.mkdir(exist_ok=True)
        mounts = self._container["volumeMounts"]
        return {mount["mountPath"]: claims[mount["name"]] for mount in mounts if mount["name"] in claims}

    def _place(self, word: str) -> str:
        for mount, directory in self._claims.items():
            if word == mount or word.startswith(f"{mount}/"):
                return f"{directory}{word.removeprefix(mount)}"
        return word

    def _variables(self, labels: Mapping[str, str]) -> dict[str, str]:
        said = {}
        for variable in self._container.get("env", ()):
            path = variable["valueFrom"]["fieldRef"]["fieldPath"] if "valueFrom" in variable else ""
            label = re.fullmatch(r"metadata\.labels\['(.+)'\]", path)
            said[variable["name"]] = labels[label[1]] if label else variable["value"]
        return said

    def _remove(self) -> None:
        """Remove what existed only in the pod."""
        shutil.rmtree(self._local)
        shutil.rmtree(find_paths(self.run.logdir).shm_dir, ignore_errors=True)
