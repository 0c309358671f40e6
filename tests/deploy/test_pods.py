"""The command of the Job's manifest works under a stand-in for the kubelet. No cluster has run it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from procsv.base import exit_codes
from tests.support.journal import read_journal
from tests.support.kubelet_stand_in import DISRUPTED, Pod
from tests.support.launched import NEWS_S_MAX
from tests.support.manifests import container_of, load_manifest, pod_of
from tests.support.programs import ROOT
from tests.support.restricted_pod import EMPTY_DIR, restricted
from tests.support.within import go_within

pytestmark = [pytest.mark.fault, pytest.mark.long]

TRAIN = """
import runpy, sys
sys.argv[1:] = [{steps!r}, "0.01"]
runpy.run_module("tests.support.numpy_training", run_name="__main__")
"""
JOB = load_manifest("job.yaml", "Job")


def write_program(place: Path, steps: int) -> None:
    (place / "train.py").write_text(TRAIN.format(steps=str(steps)))


def durable_step(pod: Pod) -> int:
    return int(pod.run.events("checkpoint_durable")[-1]["step"])


def test_a_deleted_pod_saves_within_its_grace_period_and_the_next_one_resumes_and_completes(tmp_path: Path) -> None:
    write_program(tmp_path, 10**6)
    first = Pod(JOB, tmp_path)
    first.run.wait_event("recovered")
    code = first.delete()
    assert code == exit_codes.RESUMABLE
    assert first.fate(code) == first.fate(code, DISRUPTED) == "replaced"
    (stopped,) = first.run.events("stopped")
    assert stopped["durable_step"] == stopped["step"] == durable_step(first) > 0

    write_program(tmp_path, stopped["step"] + 10)
    second = Pod(JOB, tmp_path)
    code = second.wait_end()
    assert (code, second.fate(code)) == (0, "complete"), second.run.said()
    recovered = second.run.events("recovered")[-1]
    assert (recovered["source"], recovered["step"]) == ("checkpoint", stopped["step"])


def test_a_lost_pods_successor_resumes_from_the_newest_checkpoint(tmp_path: Path) -> None:
    write_program(tmp_path, 10**6)
    first = Pod(JOB, tmp_path)
    first.run.wait_event("checkpoint_durable", count=2)
    code = first.lose()
    assert code == 128 + signal.SIGKILL
    assert (first.fate(code), first.fate(code, DISRUPTED)) == ("replaced, and counted", "replaced")

    saved = durable_step(first)
    write_program(tmp_path, saved + 500)
    second = Pod(JOB, tmp_path)
    code = second.wait_end()
    assert (code, second.fate(code)) == (0, "complete"), second.run.said()
    recovered = second.run.events("recovered")[-1]
    assert recovered["source"] == "checkpoint"
    assert recovered["step"] >= saved  # the last one may have been on disk before it was reported


def test_a_command_that_cannot_work_ends_the_job(tmp_path: Path) -> None:
    pod = Pod(JOB, tmp_path)  # there is no train.py
    code = pod.wait_end()
    assert (code, pod.fate(code)) == (exit_codes.USAGE, "job failed"), pod.run.said()


def test_nothing_outlives_a_pod_except_on_its_claim(tmp_path: Path) -> None:
    write_program(tmp_path, 10**6)
    pod = Pod(JOB, tmp_path)
    pod.run.wait_event("checkpoint_durable")
    pod.lose()
    assert not list(Path(os.environ["XDG_RUNTIME_DIR"]).iterdir())
    assert (pod.run.logdir / "checkpoint").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes a root of a container")
def test_a_pod_trains_as_an_ordinary_user_that_can_write_only_to_its_volumes(tmp_path: Path) -> None:
    context, container = pod_of(JOB)["securityContext"], container_of(JOB)
    user, image, claim = context["runAsUser"], tmp_path / "image", tmp_path / "claim"
    assert user == context["runAsGroup"] == context["fsGroup"]
    for directory in (image, claim, tmp_path / "root"):
        directory.mkdir()
    write_program(image, 60)
    (claim / "digits" / "procsv").mkdir(parents=True)  # left by an earlier pod that ran as root
    for directory in (claim, *claim.glob("**/")):
        os.chown(directory, -1, user)
        directory.chmod(0o2775)  # as the kubelet sets it for fsGroup
    volumes = {
        volume["name"]: claim if "persistentVolumeClaim" in volume else EMPTY_DIR for volume in pod_of(JOB)["volumes"]
    }
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    within = restricted(tmp_path / "root", user, "/srv", mounts | {"/srv": image})
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    done = subprocess.run(
        go_within(within, [sys.executable, "-m", *container["command"], *container["args"]]),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "JOB_COMPLETION_INDEX": "0", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=NEWS_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (claim / "digits" / "model.ckpt-60.index").stat().st_uid == user
    assert "ground_lost" not in {
        entry["event"] for entry in read_journal(claim / "digits" / "procsv" / "journal.jsonl")
    }
