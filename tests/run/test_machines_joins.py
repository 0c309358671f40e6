"""A launch that does not fit the run is refused or kept out, and the message names both sides of the conflict."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import msgspec
import pytest

from procsv.base.run.lease import LeaseFile, ProcessSpace
from procsv.base.run.paths import find_paths
from procsv.base.run.terms import lost_term
from tests.support.machines import Machines, machines

pytestmark = pytest.mark.fault

TASKS = ("chief", "worker.0", "ps.0")
OLDER = (
    *(sys.executable, "-c"),
    "import procsv; procsv.__version__ = '0.0.7'; from procsv.cli.main import main; main()",
    *("launch", "--logdir"),
)
WITHOUT_ME = {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 3}}


def end(run: Machines) -> None:
    """With a launch for each task, the run completes."""
    run.launches["chief"].wait_event("spawned", 1, "worker.0")
    (run.logdir / "end").touch()
    assert {task: run.launches[task].wait_end() for task in TASKS} == dict.fromkeys(TASKS, 0)


def test_row_75_launches_that_do_not_fit_are_refused_naming_both_sides_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    with machines(tmp_path, TASKS) as run:
        chief = run.launch("chief")
        second_chief = run.launch("chief")
        older = run.launch("worker.0", launcher=OLDER)
        assert older.wait_end() == 2
        assert re.search(r"0\.1\.0.* 0\.0\.7", older.said())
        without_me = run.launch("worker.0", TF_CONFIG=json.dumps(WITHOUT_ME))
        assert without_me.wait_end() == 2
        assert "TF_CONFIG has worker 3" in without_me.said()
        larger = run.launch("worker.0", "--workers", "2")
        assert larger.wait_end() == 2
        assert "3 (1 chief, 1 worker, 1 ps), --workers 2" in larger.said()
        both = (chief, second_chief)
        chief.wait_for("an end", lambda: [one for one in both if one.process.poll() is not None])
        chiefs = {one: one.process.poll() for one in both}
        assert sorted(map(str, chiefs.values())) == ["73", "None"], "whichever of them was first has the logdir"
        refused = next(launch for launch, code in chiefs.items() if code == 73)
        assert f"process {sum(launch.process.pid for launch in chiefs) - refused.process.pid}" in refused.said()

        run.launches["chief"] = next(launch for launch, code in chiefs.items() if code is None)
        run.launch("ps.0")
        run.launch("worker.0")
        end(run)


@pytest.mark.long
def test_row_75_a_launch_with_another_key_gets_no_answer_and_is_counted(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS) as run:
        chief = run.launch("chief")
        chief.wait_for("a term", lambda: list((run.logdir / "procsv" / "group").glob("term-*.json")))
        (term,) = (run.logdir / "procsv" / "group").glob("term-*.json")
        right = term.read_text()
        term.write_text(json.dumps({**json.loads(right), "client_secret": "another"}))
        stranger = run.launch("worker.0", "--coordinator-timeout", "3", "--peer-timeout", "1")
        assert stranger.wait_end() == 75
        assert "no coordinator" in stranger.said()

        term.write_text(right)
        run.launch("ps.0")
        run.launch("worker.0")
        chief.wait_event("spawned", 1, "worker.0")
        assert chief.status()["dropped_messages"] >= 1
        end(run)


def test_a_coordinator_that_waits_in_vain_names_the_cluster_that_was_lost_from_its_logdir(tmp_path: Path) -> None:
    others = {"chief": ["127.0.0.1:4"], "worker": ["127.0.0.1:5"], "ps": ["127.0.0.1:6"]}
    other = json.dumps({"cluster": others, "task": {"type": "chief", "index": 0}})
    with machines(tmp_path, TASKS) as run:
        for config, says in (({}, False), ({"TF_CONFIG": other}, True)):
            killed = run.launch("chief")
            killed.wait_for("its term", lambda: lost_term(find_paths(run.logdir), "another cluster") is not None)
            killed.process.kill()
            killed.wait_end()
            waits = run.launch("chief", "--coordinator-timeout", "1s", **config)
            assert waits.wait_end() == 75
            assert "worker.0, ps.0" in waits.said()
            assert ("TF_CONFIG" in waits.said()) is says


@pytest.mark.long
def test_row_53_a_coordinator_that_waits_for_launches_renews_its_lease_and_starts_nothing_after_losing_it(
    tmp_path: Path,
) -> None:
    with machines(tmp_path, TASKS) as run:
        chief, lease = run.launch("chief"), LeaseFile(find_paths(run.logdir))
        chief.wait_for("word of who is missing", lambda: "launches of worker.0, ps.0" in chief.said())
        first = lease.holder()
        assert first is not None
        chief.wait_for("its lease anew", lambda: (now := lease.holder()) is not None and now.renewed > first.renewed)
        theirs = msgspec.structs.replace(first, run="f" * 16, place=ProcessSpace("node17", "b", "p"))
        lease.take_lease(theirs)

        member = run.launch("ps.0")

        assert run.codes() == {"chief": 73, "ps.0": 73}
        assert "is in use: " in chief.said()
        assert "node17" in chief.said()
        assert "is in use: " in member.said(), "it is told, too, whether it came before or after"
        assert lease.holder() == theirs, "who has it keeps it"
        assert not chief.events("run_started")
