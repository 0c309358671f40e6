"""A worker launched without its chief is watched as any trainer, and may wait for the chief without
being called hung.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launched import environment, launched

pytestmark = [pytest.mark.fault, pytest.mark.long]

# The server and the chief's part of the work, in its own process: it initializes on request.
CHIEF = """
import sys
import tensorflow as tf

tf1 = tf.compat.v1
tf1.disable_v2_behavior()
server = tf1.train.Server.create_local_server()
print(server.target, flush=True)
with tf.device("/job:localhost"):
    tf1.train.get_or_create_global_step()
sys.stdin.readline()
with tf1.Session(server.target) as session:
    session.run(tf1.global_variables_initializer())
print("initialized", flush=True)
sys.stdin.readline()
"""
WORKER = """
import sys
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.INFO)


def build():
    with tf.device("/job:localhost"):
        return tf.assign_add(tf.train.get_or_create_global_step(), 1)


with tf.Graph().as_default():
    train = build()
    supervisor = tf.train.Supervisor(is_chief=False, logdir="of the chief", recovery_wait_secs=1)
    with supervisor.managed_session(sys.argv[1]) as session:
        while not supervisor.should_stop() and session.run(train) < 20:
            pass
with tf.Graph().as_default():
    train = build()
    with tf.train.MonitoredTrainingSession(sys.argv[1], is_chief=False, checkpoint_dir="of the chief") as session:
        while not session.should_stop():
            session.run(train)
print("worked to the end", flush=True)
"""


@pytest.fixture
def chief() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", CHIEF],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_worker_that_waits_for_its_chief_is_not_called_hung_and_ends_on_request(
    tmp_path: Path, chief: subprocess.Popen[str]
) -> None:
    assert chief.stdin is not None
    assert chief.stdout is not None
    (tmp_path / "worker.py").write_text(WORKER)
    options = ["--drop-in", "--hang-limits", "import=60s,connect=1s"]
    target = chief.stdout.readline().strip()
    with launched(tmp_path / "logdir", *options, str(tmp_path / "worker.py"), target) as run:
        # The pauses between polls double from a quarter of a second: more than a second in all.
        run.wait_for("waiting", lambda: run.said().count("Waiting for model ") >= 4)
        chief.stdin.write("\n")
        chief.stdin.flush()
        assert chief.stdout.readline() == "initialized\n"
        run.wait_event("recovered")
        run.wait_step(100)
        run.process.send_signal(signal.SIGTERM)
        assert run.wait_end() == 75
        assert "worked to the end" in run.said()
        assert [entry["source"] for entry in run.events("recovered")] == ["chief"]
        assert not run.events("hang_detected")
