"""A trainer's heartbeat shows a step under way, the program's own code and the program's end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from procsv.base.identity import TRAINER
from procsv.base.run.paths import find_paths
from procsv.ipc.shm.heartbeat import NOT_RETURNED, Heartbeat, Phase
from procsv.ipc.shm.heartbeat_file import HeartbeatReader
from tests.support.launched import Launched, launched
from tests.support.programs import ROOT

pytestmark = pytest.mark.fault

# Trains on a thread. Its main module returns once that has a session: from Python 3.12 on, no thread
# can start after that. Each file that the test makes lets it continue.
PROGRAM = """
import sys, threading, time
from pathlib import Path
from procsv.training.runtime.context import current
from tests.support.numpy_state import NumpyState, numpy_plan
from tests.support.numpy_training import initial, state_run, train

runtime = current()
told = Path(sys.argv[1])
begun = threading.Event()


def wait_for(word):
    while not (told / word).exists():
        time.sleep(0.01)


def trains():
    plan = numpy_plan(runtime.connection.paths.logdir)
    source = NumpyState(initial(), plan)
    with state_run(runtime, source, plan) as training:
        begun.set()
        training.boundary.pass_call(train, (source.arrays,))
        wait_for("step")
        training.boundary.pass_call(wait_for, ("between",))
        wait_for("end")
    wait_for("never")


threading.Thread(target=trains).start()
begun.wait()
"""


def seen(run: Launched) -> Heartbeat:
    beat = HeartbeatReader(find_paths(run.logdir).heartbeat(TRAINER, 1)).read_heartbeat()
    assert beat is not None
    return beat


def test_a_heartbeat_shows_a_step_under_way_and_is_complete_only_after_the_last_training(
    tmp_path: Path,
) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    with launched(tmp_path / "logdir", str(program), str(tmp_path), cwd=ROOT, PYTHONPATH=str(ROOT)) as run:
        run.wait_event("ready")
        run.wait_for("its own code", lambda: (seen(run).phase, seen(run).in_step) == (Phase.STEP, False))
        (tmp_path / "step").touch()
        run.wait_for("a step", lambda: (seen(run).phase, seen(run).in_step) == (Phase.STEP, True))
        assert seen(run).returned == NOT_RETURNED, "its main module has returned, and it trains"
        (tmp_path / "between").touch()
        run.wait_for("its own code", lambda: (seen(run).phase, seen(run).in_step) == (Phase.STEP, False))
        (tmp_path / "end").touch()
        run.wait_for("the end", lambda: (seen(run).phase, seen(run).returned) == (Phase.STOP, 0))
        run.kill("trainer", signal.SIGSEGV)
        assert run.wait_end() == 0
    assert len(run.events("spawned", "trainer")) == 1
