"""A monitored session that nothing saves is warned of early, and its end names the error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launched import launched

pytestmark = pytest.mark.fault

TRAIN = """
import tensorflow as tf
tf1 = tf.compat.v1
tf1.disable_eager_execution()
number = tf1.placeholder(tf.int32, [])
looked_up = tf.gather(tf.constant([1, 2, 3]), number)
with tf1.train.SingularMonitoredSession() as session:
    for step in range(9):
        session.run(looked_up, {number: step})
"""


@pytest.mark.long
def test_a_session_without_a_saver_hook_warns_that_nothing_is_saved_and_its_end_names_the_error(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    with launched(tmp_path / "logdir", "--drop-in", "--max-failures", "1", str(program)) as run:
        assert run.wait_end() == 70
    said = run.said()
    assert said.count("no CheckpointSaverHook: ") == 1
    assert " checkpoint_dir" in said  # the cure
    [death] = run.events("exited", "trainer")
    assert death["evidence"] == "InvalidArgumentError: indices = 3 is not in [0, 3)"
