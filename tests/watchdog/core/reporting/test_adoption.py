"""The adoption of a directory that a program names is reported and recorded."""

from __future__ import annotations

from procsv.base.identity import TRAINER
from procsv.base.journal.entries import LogdirAdopted
from procsv.base.system.processes import ProcessIdentity
from procsv.watchdog.core.events import Noted
from procsv.watchdog.core.hangs.trainer_liveness import StepTimes
from procsv.watchdog.core.reporting.wording import adopted
from procsv.watchdog.edge.status import Facts, run_file
from tests.watchdog.world import START, World


def test_an_adopted_logdir_is_journaled_and_reported() -> None:
    world = World().ready()
    entry, text = LogdirAdopted(logdir="/data/logs"), adopted("logs", 40)
    world.handle(Noted(task=TRAINER, incarnation=1, entry=entry, text=text))
    assert world.last("logdir_adopted") == {"logdir": "/data/logs"}
    assert world.said[-1] == text


def test_run_json_names_both_directories_and_a_step_of_a_microsecond_is_not_zero() -> None:
    world = World().ready()
    world.core.chief.hanging.liveness.steps = StepTimes(known_s=3.21456e-6)
    facts = Facts(START.with_logdir("/data/logs"), ProcessIdentity(1, 0.0, ""), 0.0)
    run = run_file(facts, world.core, 0.0, 0.0)
    assert (run.logdir, run.root, run.step_s) == ("/data/logs", "/logdir", 3.215e-6)
