"""Row 56: a program without a visible session is warned about, may be suspected of a hang, and is
never ended.

The programs need no TensorFlow, and the checkpoint service is a stand-in that saves nothing.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.support.launched import launched, procsv, settings_text

pytestmark = pytest.mark.fault

LAUNCHER = [sys.executable, str(Path(__file__).parents[1] / "watchdog" / "stand_ins" / "launch.py")]
LIMIT_S = 3.0  # longer than a busy machine delays a program, or a service's first beat
SETTINGS = settings_text(hang_limits_s={"import": LIMIT_S, "stop": LIMIT_S}, session_s=LIMIT_S)
TRAINING = settings_text(hang_limits_s={"import": LIMIT_S}, hang_abort_s=0.2)

UNTIL_TOLD = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
with open(sys.argv[1], "w") as told:
    told.write(str(listener.getsockname()[1]))
def serve():
    listener.accept()
    print("served", flush=True)
"""
SERVER = UNTIL_TOLD + "serve()"  # it waits in a system call after its imports
THREAD = UNTIL_TOLD + "import threading; threading.Thread(target=serve).start()"  # its main thread has returned


@pytest.mark.parametrize(("source", "phase"), [(SERVER, "import"), (THREAD, "stop")], ids=["server", "thread"])
def test_row_56_a_program_that_only_waits_is_suspected_once_left_alone_and_never_counts_as_completed_training(
    tmp_path: Path, source: str, phase: str
) -> None:
    (tmp_path / "serve.py").write_text(source)
    port = tmp_path / "port"
    with launched(tmp_path / "logdir", SETTINGS, str(tmp_path / "serve.py"), str(port), launcher=LAUNCHER) as run:
        warned, suspected = run.wait_event("unprotected")[0], run.wait_event("hang_suspected")[0]
        assert warned["seconds"] >= LIMIT_S
        assert suspected["phase"] == phase
        assert suspected["seconds"] >= LIMIT_S
        run.wait_for("the state in status", lambda: run.status()["protected"] is False)
        told = " ".join(procsv("status", str(run.logdir)).stdout.split())
        assert "protected no: " in told
        _connect(int(port.read_text()))
        assert run.wait_end() == 0
    assert run.events("hang_detected", "trainer") == []
    assert [len(run.events(name)) for name in ("unprotected", "hang_suspected", "run_completed")] == [1, 1, 1]
    assert [entry["incarnation"] for entry in run.events("spawned", "trainer")] == [1]
    said = run.said()
    assert said.count("procsv saves nothing") == 1
    assert "procsv saved nothing" in said
    assert said.count("--drop-in protects") == 2  # at the warning, and at the end
    assert "training is complete" not in said


def _connect(port: int) -> None:
    socket.create_connection(("127.0.0.1", port)).close()


WORKS = f"""
import subprocess, sys
# Its main thread waits in one system call, for a child that computes.
work = "import time\\nuntil = time.monotonic() + 2 * {LIMIT_S}\\nwhile time.monotonic() < until: time.sleep(0.001)"
subprocess.run([sys.executable, "-c", work], check=True)
"""


@pytest.mark.long
def test_row_56_a_program_with_a_working_child_is_not_even_suspected(tmp_path: Path) -> None:
    (tmp_path / "prepare.py").write_text(WORKS)
    with launched(tmp_path / "logdir", TRAINING, str(tmp_path / "prepare.py"), launcher=LAUNCHER) as run:
        assert run.wait_end() == 0
    assert run.events("hang_suspected") == run.events("hang_detected", "trainer") == []
    assert [entry["incarnation"] for entry in run.events("spawned", "trainer")] == [1]


HANGS_THE_SECOND_TIME = """
import os, threading
from procsv.ipc.messaging.watchdog_messages import FirstStepDone
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.runtime.context import current

incarnation = int(os.environ["PROCSV_INCARNATION"])
if incarnation == 2:
    threading.Event().wait()
run = current()
run.heartbeat.enter_phase(Phase.STEP)
run.heartbeat.reach_step(10)
run.heartbeat.extend_limit(0.0)  # the heartbeat says it now
run.report_first_step(FirstStepDone(0, "fresh", "", 10, run.clock.monotonic()))
if incarnation == 1:
    threading.Event().wait()
"""


@pytest.mark.long
def test_row_56_a_program_that_hangs_between_two_sessions_is_ended_and_restarted(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(HANGS_THE_SECOND_TIME)
    with launched(tmp_path / "logdir", TRAINING, str(tmp_path / "train.py"), launcher=LAUNCHER) as run:
        run.wait_event("recovered")
        run.kill("trainer")
        assert run.wait_end() == 0
    (hang,) = run.events("hang_detected", "trainer")
    assert (hang["incarnation"], hang["phase"]) == (2, "import")
    assert [entry["cause"] for entry in run.events("exited", "trainer")] == ["killed", "hang", "completed"]
    assert run.events("run_completed")[0]["step"] == 10
