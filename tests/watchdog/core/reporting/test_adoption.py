"""What is told of a run, and of the directory that its program has named."""

from __future__ import annotations

import pytest

from procsv.base.identity import TRAINER
from procsv.base.system.processes import Identity
from procsv.watchdog.core.events import LogdirAdopted
from procsv.watchdog.core.hangs.trainer_liveness import StepTimes
from procsv.watchdog.core.reporting.wording import adopted, greet
from procsv.watchdog.edge.status import Facts, run_file
from tests.watchdog.world import START, World


def test_an_adopted_logdir_is_journaled_and_said() -> None:
    world = World().ready()
    world.handle(LogdirAdopted(TRAINER, 1, "/data/logs", "logs", 40))
    assert world.last("logdir_adopted") == {"logdir": "/data/logs"}
    assert world.said[-1] == "checkpoints and events go to logs, as the program says; step 40 is saved there"


@pytest.mark.parametrize(
    ("saved_step", "end"), [(-1, "as the program says"), (0, "; step 0 is saved there"), (7, "; step 7 is saved there")]
)
def test_people_read_where_checkpoints_go_and_what_is_saved_there(saved_step: int, end: str) -> None:
    told = adopted("logs", saved_step)
    assert told.startswith("checkpoints and events go to logs, as the program says")
    assert told.endswith(end)


def test_the_first_line_of_a_launch_names_both_directories_where_there_are_two() -> None:
    assert greet("1.0", "runs/a", "", -1, -1)[0] == "version 1.0; run directory runs/a"
    two = "version 1.0; run directory runs/a, checkpoints and events in logs"
    assert greet("1.0", "runs/a", "logs", -1, 7)[0] == two


def test_run_json_names_both_directories_and_a_step_of_a_microsecond_is_not_nothing() -> None:
    world = World().ready()
    world.core.chief.hanging.liveness.steps = StepTimes(known_s=3.21456e-6)
    facts = Facts(START.with_logdir("/data/logs"), Identity(1, 0.0, ""), 0.0)
    run = run_file(facts, world.core, 0.0, 0.0)
    assert (run.logdir, run.root, run.step_s) == ("/data/logs", "/logdir", 3.215e-6)
