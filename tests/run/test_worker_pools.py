"""A SIGTERM that a program sends to its own forked workers is no notice to the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launched import launched

pytestmark = pytest.mark.fault

PROGRAM = """
import multiprocessing, os, signal
from tests.support.numpy_training import training


def square(x):
    return x * x


with training() as model:
    while not model.should_stop() and model.step < 20:
        model.train()
        # The end of the block sends each SIGTERM, those too that have just been forked, by a thread, for one that had done its task.
        with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
            assert pool.map(square, [3, 4]) == [9, 16]
    for _ in range(50):
        pid = os.fork()
        if not pid:
            signal.pause()
        os.kill(pid, signal.SIGTERM)  # at once: it may not have come to its first line
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    print("at", model.step, flush=True)
"""


def test_workers_that_a_program_forks_and_ends_with_sigterm_do_not_stop_the_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    with launched(tmp_path / "logdir", "train.py", cwd=tmp_path) as run:
        assert run.wait_end() == 0
        assert not run.events("preempt_notice")
        assert "at 20" in run.said()
