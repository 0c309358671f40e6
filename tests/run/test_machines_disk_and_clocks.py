"""Several machines share one directory: it may be full for a while, and no two of their clocks need agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.run.test_machines_cut_off import OPTIONS, PROGRAM, end, wait_trains
from tests.support.launched import procsv
from tests.support.machines import LAUNCH, machines
from tests.support.programs import ROOT

pytestmark = pytest.mark.fault

TASKS = ("chief", "worker.0")
BEHIND_S = 600
CLOCK = f"""
import time
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() - {BEHIND_S}
time.time_ns = lambda: _time_ns() - {BEHIND_S} * 10**9
"""  # of every process of a machine whose clock is wrong


def test_row_76_a_shared_directory_that_is_full_for_a_while_costs_no_machine_and_saving_goes_on(tmp_path: Path) -> None:
    fault = "fill logdir for 2s at step 60"
    options = (*OPTIONS, "--fault", fault)
    with machines(tmp_path, TASKS, *options, program=PROGRAM, PYTHONPATH=str(ROOT)) as run:
        chief = run.launch_all()
        (failed,) = chief.wait_event("checkpoint_failed")
        assert "No space left" in failed["error"]
        saved = len(chief.events("checkpoint_durable"))
        chief.wait_event("checkpoint_durable", saved + 2)
        assert not chief.events("member_lost")
        assert not [entry for entry in chief.events("exited") if entry["role"] in TASKS]
        end(run)

        assert run.codes() == dict.fromkeys(TASKS, 0)


def test_row_76_a_chief_on_a_machine_whose_clock_is_ten_minutes_behind_goes_on_from_the_newest_state(
    tmp_path: Path,
) -> None:
    behind = tmp_path / "behind"
    behind.mkdir()
    (behind / "sitecustomize.py").write_text(CLOCK)
    paths = f"{behind}:{ROOT}"
    with machines(tmp_path, TASKS, *OPTIONS, program=PROGRAM, PYTHONPATH=str(ROOT)) as run:
        run.launch("worker.0", launcher=LAUNCH, PYTHONPATH=paths)  # of two machines, one is behind
        chief = run.launch("chief", launcher=LAUNCH)
        wait_trains(chief)
        chief.kill("worker.0")
        chief.wait_event("spawned", 2, "worker.0")
        assert not chief.events("member_lost")
        chief.process.terminate()
        assert run.codes() == dict.fromkeys(TASKS, 75)
        (stopped,) = chief.events("stopped")
        began_s = chief.events("run_started")[0]["time"]

        run.launch("worker.0", launcher=LAUNCH)
        chief = run.launch("chief", launcher=LAUNCH, PYTHONPATH=paths)  # its scheduler starts it on that one
        wait_trains(chief, 2)
        second = chief.events("run_started")[1]
        assert second["time"] < began_s, "the clock is wrong indeed"
        assert chief.events("recovered", "chief")[-1]["step"] == stopped["durable_step"] == stopped["step"]
        chief.wait_event("checkpoint_durable", len(chief.events("checkpoint_durable")) + 2)
        end(run)

        assert run.codes() == dict.fromkeys(TASKS, 0)
        saved = [entry["step"] for entry in chief.events("checkpoint_durable")]
        assert saved == sorted(saved)
        newest = (run.logdir / "checkpoint").read_text().splitlines()[0]
        assert newest.endswith(f'-{chief.events("run_completed")[0]["step"]}"')
        account = json.loads(procsv("report", str(run.logdir), "--json").stdout)
        assert all(seconds >= 0 for seconds in account["seconds"].values())
        assert account["wall_seconds"] < BEHIND_S
