"""A stand-in for the kubelet and the Job controller, as far as a manifest's command can tell: no cluster, no container, no network.

It starts the command of a pod with the pod's variables, stops it as the kubelet does (SIGTERM, the grace period, SIGKILL), and reads
from the Job's rules what becomes of the pod.  A pod has directories of its own and an empty memory volume; what it has mounted
elsewhere, a claim or a Secret, is a directory of the test, whose path takes the mount's place on the command line.  Pods of a JobSet have
a network, processes and memory of their own besides, and know each other by the names that a JobSet gives them.
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
DISRUPTED = "DisruptionTarget"  # the condition of a pod that is preempted, drained or evicted


class Node(NamedTuple):
    """What a pod of a JobSet runs on.  A JobSet's names are found in the file `names`, which is of all its pods."""

    machine: OwnMachine
    names: Path

    @property
    def launcher(self) -> tuple[str, ...]:
        """What runs a command there, in front of it."""
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
        """`volumes`: holds a directory for each claim and Secret, which outlives the pod.  Its program is run in `volumes`.

        `node`: of its own; None: this machine.
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
        """Stops it as for a drained node; the exit code of its command."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.tell(signal.SIGTERM)
            self.run.process.wait(pod_of(self.job)["terminationGracePeriodSeconds"])
        return self.lose()

    def lose(self) -> int:
        """Ends all of it at one blow, as with its node; the exit code, 128 and the signal's number for a signal."""
        if self._node is not None:
            self._node.machine.send_signal(signal.SIGKILL)
        end_at_once(lambda: with_variable(XDG_RUNTIME_DIR=str(self._local)))
        code = self.run.wait_end()
        self._remove()
        return code if code >= 0 else 128 - code

    def tell(self, number: signal.Signals) -> None:
        """A signal to the process of its command; on a node of its own, what has made the node is before that."""
        with contextlib.suppress(psutil.Error):  # it has ended by itself
            started = psutil.Process(self.run.process.pid)
            for process in started.children() if self._node is not None else [started]:
                process.send_signal(number)

    def wait_end(self) -> int:
        """Waits for the end of its command; the exit code."""
        self.run.wait_end()
        return self.lose()

    def fate(self, code: int, *conditions: str) -> Fate:
        """What the Job's rules make of a pod that has ended with `code`, or with one of `conditions`."""
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
        """The directory in the place of each mount."""
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
        """What was in the pod alone."""
        shutil.rmtree(self._local)
        shutil.rmtree(find_paths(self.run.logdir).shm_dir, ignore_errors=True)
