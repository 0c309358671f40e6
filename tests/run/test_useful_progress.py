"""A program whose restarts make no useful progress is given up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launched import launched, procsv
from tests.support.programs import ROOT

pytestmark = pytest.mark.fault

# Each attempt trains two steps, saves them and fails at the same line.
FAILS = """
from procsv.training.runtime.context import current
from tests.support.numpy_state import NumpyState, numpy_plan
from tests.support.numpy_training import initial, state_run, train

runtime = current()
plan = numpy_plan(runtime.connection.paths.logdir)
source = NumpyState(initial(), plan)
with state_run(runtime, source, plan) as training:
    for _ in range(2):
        training.boundary.pass_call(train, (source.arrays,))
    training.save("manual", 300.0)
    raise RuntimeError(f"out of luck at step {source.read_step()}")
"""


def test_row_55_a_program_that_saves_two_steps_and_fails_at_the_same_line_is_given_up(tmp_path: Path) -> None:
    logdir, program = tmp_path / "logdir", tmp_path / "train.py"
    program.write_text(FAILS)
    options = ("--backoff", "0.05s..0.1s", str(program))
    with launched(logdir, *options, cwd=ROOT, PYTHONPATH=str(ROOT)) as run:
        assert run.wait_end() == 70, run.said()
        assert [entry["step"] for entry in run.events("recovered")] == [0, 2, 4, 6, 8]
        [entry] = run.events("gave_up")
        why = f"no useful progress: RuntimeError in <module> ({program}:13), 5 times "
        assert entry["why"].startswith(why)
        assert "kept in all" in entry["why"]
        assert why in run.said().replace("\n", " ")
        assert why in procsv("report", str(logdir), "--json").stdout
        assert "it gave up: no useful progress: RuntimeError" in procsv("report", str(logdir)).stdout
    assert max(entry["step"] for entry in run.events("checkpoint_durable")) == 10  # what it has done is not lost


# Crashes at step 20 whatever it resumed from, and has a checkpoint of its start.
CRASHES = """
import os, signal
from procsv.training.runtime.context import current
from tests.support.numpy_state import NumpyState, numpy_plan
from tests.support.numpy_training import initial, state_run, train

runtime = current()
plan = numpy_plan(runtime.connection.paths.logdir)
source = NumpyState(initial(), plan)
with state_run(runtime, source, plan) as training:
    while source.read_step() < 20:
        training.boundary.pass_call(train, (source.arrays,))
    if source.read_step() == 20 and training.origin.step != 0 or os.environ["PROCSV_INCARNATION"] == "1":
        training.save("manual", 300.0)
        os.kill(os.getpid(), signal.SIGSEGV)
"""


def test_a_restart_names_the_state_that_it_uses_and_what_starting_over_throws_away(
    tmp_path: Path,
) -> None:
    program = tmp_path / "train.py"
    program.write_text(CRASHES)
    options = ("--backoff", "0.05s..0.1s", str(program))
    with launched(tmp_path / "logdir", *options, cwd=ROOT, PYTHONPATH=str(ROOT)) as run:
        assert run.wait_end() == 0, run.said()
    assert [entry["step"] for entry in run.events("recovered")][-1] == 0
    said = " ".join(run.said().split())
    assert "checkpoint before step 20" in said
    assert "from step 20 to step 0" in said
