"""With --consistent-snapshots over several launches no checkpoint mixes the steps of several tasks, or its manifest says that it does."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path

import pytest
import tensorflow as tf

from tests.run import test_consistent_snapshots
from tests.run.test_consistent_snapshots import Saved, check_saved, saved, standing_at, wait_saved, wait_slot
from tests.run.test_machines_replaced import LONG, kill_launch
from tests.support.launched import Launched, procsv
from tests.support.machines import machines
from tests.support.own_machines import OwnMachine
from tests.support.programs import ROOT

pytestmark = pytest.mark.fault

# Each step takes its time between the two variables: a worker that does not stand is met there soon.
PROGRAM = test_consistent_snapshots.PROGRAM.replace("/job:ps/task:1", "/job:ps/task:0").replace(
    "    return np.int64(0)", "    pause.wait(0.03)\n    return np.int64(0)"
)
TASKS = ("chief", "worker.0", "worker.1", "ps.0")
SNAPSHOTS = 10  # enough for one to meet a step of a task that does not stand
OPTIONS = ("--drop-in", "--consistent-snapshots", "--snapshot-secs", "0.2")


def wait_trains(chief: Launched, *tasks: str) -> None:
    for task in tasks:
        chief.wait_event("recovered", 1, task)


def last_held(chief: Launched) -> dict[str, object]:
    return chief.events("held")[-1] if chief.events("held") else {"is_exact": None, "why": ""}


def wait_held(chief: Launched, is_exact: bool, why: str = "") -> None:
    """The newest news of holds says so, and names that."""

    def is_so() -> bool:
        last = last_held(chief)
        return last["is_exact"] is is_exact and why in str(last["why"])

    chief.wait_for(f"a hold with is_exact {is_exact} {why}", is_so)


def wait_exact(chief: Launched) -> None:
    """A checkpoint of what is trained from now on does not say that it is mixed.

    Its values are not looked at: a task that has died, or lost its servers, in the middle of a step has left half of it for good.
    """
    step = chief.step()

    def is_there() -> bool:
        return any(not one.is_mixed and one.step > step for one in saved(chief))

    chief.wait_for(f"a checkpoint that is not mixed after step {step}", is_there)


def copy_exact(chief: Launched, after: int, to: Path) -> Saved:
    """Copies a checkpoint that is not mixed, of a step after that one, into a logdir of its own."""
    found: list[Saved] = []

    def is_copied() -> bool:
        exact = [one for one in check_saved(chief) if not one.is_mixed and one.step > after]
        with contextlib.suppress(FileNotFoundError, IndexError):  # removed meanwhile: a newer one is there
            files = sorted(chief.logdir.glob(f"model.ckpt-{exact[-1].step}.*"))
            for file in files:
                shutil.copy(file, to)
            found[:] = exact[-1:] if files and all(file.exists() for file in files) else []
        return bool(found)

    chief.wait_for("a checkpoint that is not mixed", is_copied)
    tf.compat.v1.train.update_checkpoint_state(str(to), str(to / f"model.ckpt-{found[0].step}"))
    return found[0]


def test_row_81_a_checkpoint_over_machines_is_of_one_step_and_what_restores_it_goes_on_from_that(
    tmp_path: Path,
) -> None:
    (again := tmp_path / "again" / "run").mkdir(parents=True)
    options = (*OPTIONS, "--grace", "60")
    with machines(tmp_path, TASKS, *options, program=PROGRAM) as run:
        chief = run.launch_all()
        wait_trains(chief, *TASKS[:3])
        step = 0
        for _ in range(3):
            step = wait_saved(chief, is_mixed=False, after=step).step
        wait_held(chief, True)

        (tmp_path / "slow").touch()  # worker.1 stands in the middle of a step
        chief.wait_for("workers that stand", lambda: standing_at(chief) >= 0)
        mixed = wait_saved(chief, is_mixed=True, after=standing_at(chief))
        assert len(mixed.values) == 2, "one has added to the first variable alone"
        wait_held(chief, False, "worker.1")
        assert all(one.is_mixed for one in saved(chief) if one.step > standing_at(chief))

        (tmp_path / "slow").unlink()
        exact = copy_exact(chief, mixed.step, again)
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.codes() == dict.fromkeys(TASKS, 75)
        check_saved(chief)

    with machines(again.parent, TASKS, *options, program=PROGRAM) as run:
        chief = run.launch_all()
        wait_trains(chief, *TASKS[:3])
        (recovered,) = chief.events("recovered", "chief")
        assert (recovered["source"], recovered["step"]) == ("checkpoint", exact.step)
        wait_saved(chief, is_mixed=False, after=exact.step)  # all that every task has added since is in both variables
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.codes() == dict.fromkeys(TASKS, 75)


def test_row_81_deaths_of_chief_and_worker_a_frozen_worker_and_a_lost_machine_hold_nobody_up(tmp_path: Path) -> None:
    options = (*OPTIONS, "--peer-timeout", "10", "--backoff", "0..0", "--grace", "10")
    with machines(tmp_path, TASKS, *options, program=PROGRAM) as run:
        for task in reversed(TASKS[1:]):
            run.launch(task)
        chief = run.launch("chief", PROCSV_FAILPOINTS="trainer.held@1=5*off->1*kill")
        wait_trains(chief, *TASKS[:3])
        chief.wait_event("exited", 1, "chief")
        chief.wait_event("recovered", 2, "chief")
        assert chief.events("recovered", "chief")[1]["source"] == "alive"
        wait_saved(chief, is_mixed=False, after=chief.step())  # by the next chief

        chief.kill("worker.1")
        chief.wait_event("recovered", 2, "worker.1")
        wait_exact(chief)  # its next attempt stands, too

        frozen = chief.events("spawned", "worker.1")[-1]["pid"]
        os.kill(frozen, signal.SIGSTOP)
        wait_held(chief, False, "worker.1")
        chief.wait_step(chief.step() + 20)  # the others train on
        os.kill(frozen, signal.SIGCONT)
        wait_held(chief, True)

        machine = (frozen, run.launches["worker.1"].process.pid)
        for pid in machine:
            os.kill(pid, signal.SIGSTOP)
        chief.wait_event("member_lost", 1, "worker.1")
        assert {run.launches[task].wait_end() for task in ("chief", "worker.0", "ps.0")} == {75}
        assert max(saved(chief)).is_mixed, "nobody knows what worker.1 does next"
        os.kill(frozen, signal.SIGKILL)  # its server is gone, and so is whom its launch would look for
        for number in (signal.SIGTERM, signal.SIGCONT):
            os.kill(machine[1], number)
        assert run.launches["worker.1"].wait_end() == 75


def test_row_81_once_a_launch_is_started_again_in_its_place_all_are_held_again_and_nothing_exact_is_of_two_steps(
    tmp_path: Path,
) -> None:
    """The task of a launch that is killed ends between two of its steps, so the values tell of each checkpoint of how many it is."""
    with machines(tmp_path, TASKS, *OPTIONS, *LONG, "--grace", "60", program=PROGRAM) as run:
        chief = run.launch_all()
        wait_trains(chief, *TASKS[:3])
        wait_held(chief, True)
        for number in (1, 2):
            kill_launch(run, chief)
            wait_held(chief, False, "worker.0")

            run.launch("worker.0")

            chief.wait_event("member_replaced", number)
            chief.wait_event("recovered", number + 1, "worker.0")
            wait_held(chief, True)
            step = chief.step()
            for _ in range(SNAPSHOTS):
                step = wait_slot(chief, is_mixed=False, after=step)
            wait_saved(chief, is_mixed=False, after=step)
        assert len(chief.events("run_started")) == 1
        assert {len(chief.events("spawned", task)) for task in ("chief", "worker.1", "ps.0")} == {1}
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.codes() == dict.fromkeys(TASKS, 75)
        check_saved(chief)


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_row_81_what_is_captured_while_a_link_is_cut_is_mixed_and_behind_the_cut_all_are_held_again(
    tmp_path: Path, hosts: list[OwnMachine]
) -> None:
    tasks, options = ("chief", "worker.0", "ps.0"), (*OPTIONS, "--peer-timeout", "60")
    found = {"PYTHONPATH": str(ROOT)}
    with machines(tmp_path, tasks, *options, program=PROGRAM, hosts=hosts, **found) as run:
        chief = run.launch_all()
        wait_trains(chief, *tasks[:2])
        wait_held(chief, True)
        hosts[1].cut()
        wait_held(chief, False, "worker.0")
        step = chief.step()
        chief.wait_step(step + 20)  # of the chief's own
        wait_saved(chief, is_mixed=True, after=step)  # and none that says otherwise is
        hosts[1].mend()
        wait_held(chief, True)
        wait_exact(chief)
        assert not chief.events("member_lost")
