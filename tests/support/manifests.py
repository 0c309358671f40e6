"""Load the Kubernetes manifests that procsv ships as Python values, and find the pods in them."""

from __future__ import annotations

from typing import Any

import yaml

from tests.support.programs import ROOT

DEPLOY = ROOT / "procsv" / "examples" / "deploy"
Manifest = dict[str, Any]


def load_manifest(name: str, kind: str) -> Manifest:
    """Return the only document of that kind in the file."""
    (found,) = (document for document in yaml.safe_load_all((DEPLOY / name).read_text()) if document["kind"] == kind)
    return dict(found)


def jobs_of(manifest: Manifest) -> dict[str, Manifest]:
    """Return the manifest's Jobs, by the name of their part of a JobSet or by their own name."""
    if manifest["kind"] == "Job":
        return {manifest["metadata"]["name"]: manifest}
    return {
        part["name"]: {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": part["name"]}, **part["template"]}
        for part in manifest["spec"]["replicatedJobs"]
    }


def pod_of(job: Manifest) -> Manifest:
    """Return the spec of the Job's pods."""
    return dict(job["spec"]["template"]["spec"])


def container_of(job: Manifest) -> Manifest:
    (container,) = pod_of(job)["containers"]
    return dict(container)


def option(argv: list[str], name: str) -> str:
    """Return the value that follows `name` on a command line."""
    return argv[argv.index(name) + 1]
