"""Launches without a shared directory find each other at the chief's address and are admitted by
their common secret.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from procsv.base.cluster import make_cluster
from procsv.base.identity import TaskId
from procsv.base.run.paths import local_home
from tests.run import test_gang, test_machines_summaries
from tests.run.test_machines_mirror import lose, mirrors, wait_mirrored
from tests.support.launched import Launched
from tests.support.machines import WAITS, M, Machines, launches_of, machines
from tests.support.ports import hold_ports

pytestmark = pytest.mark.fault

TASKS = ("chief", "worker.0")
GANG = ("worker.0", "worker.1")
SHIM = """
import sys
sys.argv[:2] = ["procsv", "launch", "--logdir", {url!r}]
from procsv.cli.main import main
sys.exit(main())
"""  # replaces the directory that it is given


class Apart(Machines):
    """Each launch has its own directory, as on a machine without a shared filesystem. The first
    one's is `logdir`.
    """

    def place_of(self, task: TaskId) -> Path:
        if task == self.tasks[0]:
            return self.logdir
        place = self.logdir.with_name(f"{task}.disk")
        place.mkdir(exist_ok=True)
        return place


class AtUrl(Machines):
    """All launches have a URL as logdir, and each has a directory for its machine's own files."""

    @property
    def url(self) -> str:
        return f"file://{self.logdir.parent}/far/mine"

    def place_of(self, task: TaskId) -> Path:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("XDG_STATE_HOME", self.own_variables(task)["XDG_STATE_HOME"])
            place = local_home(self.url)
        place.mkdir(parents=True, exist_ok=True)
        if task == self.tasks[0] and not self.logdir.is_symlink():
            self.logdir.rmdir()
            self.logdir.symlink_to(place)
        self.launcher = (sys.executable, "-c", SHIM.format(url=self.url))
        return place

    def own_variables(self, task: TaskId) -> dict[str, str]:
        return {"XDG_STATE_HOME": str(self.logdir.parent / f"{task}.state")}


class AtUrlApart(AtUrl):
    """Each launch is on its own machine of the cluster."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        ports = [address.rpartition(":")[2] for role in self._cluster.values() for address in role]
        told = [f"{self.host_of(task)}:{port}" for task, port in zip(self.tasks, ports, strict=True)]
        self._cluster = make_cluster(dict(zip(self.tasks, told, strict=True)))

    def host_of(self, task: TaskId) -> str:
        return f"127.0.0.{1 + self.tasks.index(task)}"

    def own_variables(self, task: TaskId) -> dict[str, str]:
        return {**super().own_variables(task), "PROCSV_HOST": self.host_of(task)}


@contextlib.contextmanager
def launches(kind: type[M], directory: Path, tasks: Sequence[str], *args: str, program: str = WAITS) -> Iterator[M]:
    """Run launches as `machines` does, at an address."""
    (directory / "train.py").write_text(program)
    with contextlib.ExitStack() as held:
        port = hold_ports(held)[0]  # and the following port
        with launches_of(kind(directory, tasks, (*args, "train.py"), {"PROCSV_PORT": str(port)})) as made:
            yield made


def secret(directory: Path, name: str = "secret", data: bytes = b"0123456789abcdef" * 2) -> str:
    path = directory / name
    path.write_bytes(data)
    path.chmod(0o600)
    return str(path)


def logs(directory: Path) -> set[str]:
    return {path.name for path in (directory / "procsv" / "logs").glob("*.log")}


def says(launch: Launched, text: str) -> bool:
    return text in launch.said()


def test_launches_with_directories_of_their_own_are_one_run(tmp_path: Path) -> None:
    options = ("--secret-file", secret(tmp_path))
    with launches(Apart, tmp_path, TASKS, *options) as run:
        chief = run.launch_all()
        chief.wait_event("spawned", 1, "worker.0")
        (run.logdir / "end").touch()

        assert run.codes() == dict.fromkeys(TASKS, 0)
        own = run.place_of(TaskId("worker", 0))
        assert "worker.0.1.log" in logs(own)
        assert "worker.0.1.log" not in logs(run.logdir)
        assert not [path for place in (own, run.logdir) for path in (place / "procsv").glob("group*")]


def test_event_files_stay_on_the_machine_of_their_task(tmp_path: Path) -> None:
    options = ("--secret-file", secret(tmp_path))
    with launches(Apart, tmp_path, TASKS, *options, program=test_machines_summaries.TOGETHER) as run:
        run.launch_all()
        assert run.codes() == dict.fromkeys(TASKS, 0)
        for task in TASKS:
            (path,) = (run.place_of(TaskId.parse(task)) / "together").iterdir()
            assert [tag for tag, _ in test_machines_summaries.values_in(path)] == [task] * 50


def test_a_launch_with_another_secret_is_refused_and_learns_what_to_check(tmp_path: Path) -> None:
    other = secret(tmp_path, "other", b"x" * 32)
    with launches(Apart, tmp_path, TASKS) as run:
        chief = run.launch("chief", "--secret-file", secret(tmp_path))
        refused = run.launch("worker.0", "--secret-file", other, "--coordinator-timeout", "3")
        assert refused.wait_end() == 75
        assert "--secret-file and PROCSV_PORT" in refused.said()
        run.launch("worker.0", "--secret-file", secret(tmp_path))
        chief.wait_event("spawned", 1, "worker.0")
        (run.logdir / "end").touch()
        assert run.codes() == dict.fromkeys(TASKS, 0)


def test_all_launches_learn_why_there_is_no_run(tmp_path: Path) -> None:
    """Another run has the logdir. Its launches have other tasks, so they are not asked."""
    with machines(tmp_path, TASKS) as first:
        first.launch_all().wait_event("spawned", 1, "worker.0")
        options = ("--secret-file", secret(tmp_path))
        with launches(Apart, tmp_path, TASKS, *options) as second:
            second.launch_all()
            assert second.codes() == dict.fromkeys(TASKS, 73)
            assert "is in use" in second.launches["worker.0"].said()
        (first.logdir / "end").touch()
        assert first.codes() == dict.fromkeys(TASKS, 0)


@pytest.mark.long
def test_all_launches_learn_who_is_missing(tmp_path: Path) -> None:
    three = (*TASKS, "ps.0")
    with launches(Apart, tmp_path, three, "--secret-file", secret(tmp_path)) as run:
        server = run.launch("ps.0")
        server.wait_for("word that it waits", partial(says, server, "waiting for the "))
        run.launch("chief", "--coordinator-timeout", "10")
        assert run.codes() == {"ps.0": 75, "chief": 75}
        for launch in run.launches.values():
            assert "worker.0 within 10" in launch.said()


@pytest.mark.long
def test_members_that_waited_for_the_previous_coordinator_find_the_new_one(tmp_path: Path) -> None:
    three = (*TASKS, "ps.0")
    with launches(Apart, tmp_path, three, "--secret-file", secret(tmp_path)) as run:
        run.launch("ps.0")
        lost = run.launch("chief")
        lost.wait_for("word of who is missing", partial(says, lost, "launches of worker.0"))
        lost.process.send_signal(signal.SIGKILL)
        lost.wait_end()

        run.launch("worker.0")
        chief = run.launch("chief")

        for task in ("worker.0", "ps.0"):
            chief.wait_event("spawned", 1, task)
        (run.logdir / "end").touch()
        assert run.codes() == dict.fromkeys(three, 0)


@pytest.mark.long
def test_a_coordinator_that_returns_to_its_address_adopts_what_still_runs(tmp_path: Path) -> None:
    options = ("--secret-file", secret(tmp_path), "--peer-timeout", "5")
    with launches(Apart, tmp_path, TASKS, *options) as run:
        lost = run.launch_all()
        (spawned,) = lost.wait_event("spawned", 1, "worker.0")
        lost.process.send_signal(signal.SIGKILL)
        lost.wait_end()

        chief = run.launch("chief")

        (adopted,) = chief.wait_event("adopted", 1, "worker.0")
        assert adopted["pid"] == spawned["pid"]
        (run.logdir / "end").touch()
        assert run.codes() == dict.fromkeys(TASKS, 0)


@pytest.mark.long
def test_tasks_on_several_machines_can_share_a_logdir_that_is_a_url(tmp_path: Path) -> None:
    options = ("--workers", "2", "--no-chief", "--snapshot-secs", "0.2", "--secret-file", secret(tmp_path))
    with launches(AtUrl, tmp_path, GANG, *options, program=test_gang.PROGRAM) as run:
        chief = run.launch_all()
        chief.wait_event("gang_formed")
        chief.wait_for(
            "a snapshot", lambda: json.loads((run.logdir / "procsv" / "run.json").read_text())["memory_step"] > 0
        )
        chief.kill("worker.1")
        chief.wait_event("gang_formed", 2)
        chief.process.send_signal(signal.SIGTERM)
        assert run.codes() == dict.fromkeys(GANG, 75)

        chief = run.launch_all()
        chief.wait_event("gang_formed", 3)
        (tmp_path / "open").touch()
        assert run.codes() == dict.fromkeys(GANG, 0)

        for task in GANG:
            recovered = chief.events("recovered", task)
            assert [entry["source"] for entry in recovered] == ["fresh", "memory", "checkpoint"]
            assert recovered[-1]["from"].startswith(run.url)
            assert recovered[-1]["step"] > 0
        latest = tf.train.latest_checkpoint(run.url)
        assert latest is not None
        assert latest.startswith(run.url)
        own = run.place_of(TaskId("worker", 1))
        assert {"worker.1.1.log", "worker.1.2.log"} <= logs(own)
        assert len({text for place in (run.logdir, own) for text in variables_in(place)}) == 1


@pytest.mark.long
def test_row_78_with_a_url_as_logdir_a_lost_coordinators_memory_comes_from_the_copy_on_another_machine(
    tmp_path: Path,
) -> None:
    """The coordinator's machine takes its memory and its local files for the URL along."""
    options = ("--workers", "2", "--no-chief", "--snapshot-secs", "0.2", "--peer-timeout", "10")
    secrets = ("--secret-file", secret(tmp_path))
    with launches(AtUrlApart, tmp_path, GANG, *options, *secrets, program=test_gang.PROGRAM) as run:
        chief = run.launch_all()
        step = wait_mirrored(chief, 100)
        lose(chief)
        shutil.rmtree(run.logdir.resolve())
        run.logdir.unlink()
        run.logdir.mkdir()

        again = run.launch(GANG[0])

        again.wait_event("gang_formed", 1)
        begun = again.events("recovered", GANG[0])
        assert [(entry["source"], entry["step"] >= step) for entry in begun] == [("memory", True)]
        (fetched,) = again.events("mirror_fetched")
        assert fetched["host"] == "127.0.0.2"
        (tmp_path / "open").touch()
        assert run.codes() == dict.fromkeys(GANG, 0)
        latest = tf.train.latest_checkpoint(run.url)
        assert latest is not None
        assert latest.startswith(run.url)
        assert not mirrors(run.place_of(TaskId.parse(GANG[1])))


def test_a_url_without_a_secret_is_refused_with_the_option_to_use(tmp_path: Path) -> None:
    with launches(AtUrl, tmp_path, TASKS) as run:
        refused = run.launch("chief")
        assert refused.wait_end() == 2
        assert "--secret-file" in refused.said()


def variables_in(place: Path) -> set[str]:
    texts = [log.read_text() for log in (place / "procsv" / "logs").glob("worker.*.log")]
    found = {line.partition("variables ")[2] for text in texts for line in text.splitlines() if "variables " in line}
    assert found, f"nothing has ended in {place}"
    return found
