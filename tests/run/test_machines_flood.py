"""Connections that flood a coordinator's port neither end nor block it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from procsv.base.run.lease import LeaseFile
from procsv.base.run.paths import find_paths
from tests.support.flood import flood
from tests.support.launched import NOT_SAVED
from tests.support.machines import machines
from tests.support.ports import hold_ports

STRANGERS = 1000  # connections that a coordinator accepts at its port at a time
SLACK = 500  # its own descriptors, connections queued in the kernel, and new ones while a busy machine polls


@pytest.mark.long
def test_row_85_a_flood_of_silent_connections_neither_ends_nor_blocks_a_coordinator(
    tmp_path: Path,
) -> None:
    with ExitStack() as held:
        port = hold_ports(held)[0]
        run = held.enter_context(machines(tmp_path, ["chief", "worker.0"], PROCSV_PORT=str(port)))
        chief = run.launch_all()
        chief.wait_event("spawned", 1, "worker.0")
        lease, watchdog = LeaseFile(find_paths(run.logdir)), psutil.Process(chief.process.pid)
        with flood(port):
            chief.wait_for("a thousand strangers", lambda: chief.status()["dropped_messages"] > STRANGERS)
            before = lease.holder()
            chief.kill("chief")
            chief.wait_event("spawned", 2, "chief")
            chief.wait_for(
                "its lease anew",
                lambda: before is not None and (now := lease.holder()) is not None and now.renewed > before.renewed,
            )
            assert watchdog.num_fds() < STRANGERS + SLACK
        assert not chief.events("member_lost")
        chief.process.terminate()
        assert chief.wait_end() in NOT_SAVED
