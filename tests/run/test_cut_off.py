"""When the network cuts off a parameter server, the other tasks see no error and none is ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import own_network
from tests.support.launched import launched, procsv
from tests.support.replicas import JOIN, MODEL, SERVER, TASK, memory_step, monitored, wait_for_steps

pytestmark = pytest.mark.fault

PROGRAM = TASK + SERVER + JOIN + MODEL + monitored()
SENT_AGAIN = 5  # retransmissions, each after twice the time of the previous one: six seconds


@pytest.mark.long
def test_row_65_a_server_cut_off_for_seconds_ends_no_task_and_does_not_delay_a_stop(
    tmp_path: Path,
) -> None:
    if why := own_network.why_not():
        pytest.skip(why)
    (tmp_path / "train.py").write_text(PROGRAM)
    options = ("--workers", "1", "--ps", "1", "--drop-in", "--snapshot-secs", "0.2", "--grace", "6s")
    within = own_network.OWN_NETWORK
    with launched(tmp_path / "run", *options, "train.py", cwd=tmp_path, standby=None, within=within) as run:
        for task in ("chief", "worker.0"):
            run.wait_event("recovered", 1, task)
        wait_for_steps(run)
        chief = run.pid("chief")

        own_network.cut(chief)
        run.wait_for("seconds without a network", lambda: own_network.sent_again(chief) >= SENT_AGAIN)
        stands_at = run.step()
        own_network.mend(chief)
        run.wait_step(stands_at + 50)
        trained = wait_for_steps(run)
        assert not run.events("exited")
        assert not run.events("hang_detected")

        own_network.cut(chief)
        run.wait_for("a cut", lambda: own_network.sent_again(chief) > 0)
        newest = memory_step(run)
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.wait_end() == 75
        (stopped,) = run.events("stopped")
        assert stopped["durable_step"] >= newest >= trained
        assert not run.events("gave_up")
        ended = {entry["role"]: entry["cause"] for entry in run.events("exited")}
        assert {ended[task] for task in ("chief", "worker.0", "ps.0")} == {"stopped"}
