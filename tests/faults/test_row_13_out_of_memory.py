"""Row 13: a kill by the kernel's out-of-memory killer is reported with evidence, and any other kill as unknown."""

from __future__ import annotations

import contextlib
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from procsv.ipc.messaging.launch_settings import Range
from procsv.watchdog.host.post_mortem import CGROUPS
from tests.support.launched import launched, settings_text

pytestmark = pytest.mark.fault

LAUNCH = Path(__file__).parents[1] / "watchdog" / "stand_ins" / "launch.py"
LIMIT_BYTES = 400 * 2**20  # for the watchdog, its services and the trainer together

PROGRAM = """
import os, signal
if os.environ["PROCSV_INCARNATION"] == "1":
    if {is_limited}:
        taken = bytearray(2**30)
        for page in range(0, len(taken), 4096):
            taken[page] = 1
    os.kill(os.getpid(), signal.SIGKILL)  # where nothing is limited: a kill that nobody explains
"""


@contextlib.contextmanager
def a_small_cgroup(limit_bytes: int = LIMIT_BYTES) -> Iterator[Path | None]:
    """Return a cgroup with that much memory, or None if this machine or user cannot make one."""
    for root, limit in ((CGROUPS / "memory", "memory.limit_in_bytes"), (CGROUPS, "memory.max")):
        made = root / f"procsv-test-{secrets.token_hex(4)}"
        with contextlib.suppress(OSError):
            made.mkdir()
            if (made / limit).is_file():
                (made / limit).write_text(str(limit_bytes))
                try:
                    yield made
                finally:
                    _remove(made)
                return
            made.rmdir()
    yield None


def _remove(made: Path) -> None:
    until_s, pause = time.monotonic() + 300.0, threading.Event()
    while True:
        try:
            made.rmdir()
        except OSError:  # a process that has just ended is still counted
            assert time.monotonic() < until_s, f"{made} stays"
            pause.wait(0.05)
        else:
            return


def test_row_13_an_out_of_memory_kill_is_reported_with_its_evidence_and_any_other_as_unknown(
    tmp_path: Path,
) -> None:
    with a_small_cgroup() as cgroup:
        (tmp_path / "train.py").write_text(PROGRAM.format(is_limited=cgroup is not None))
        enter = f'echo $$ > {cgroup}/cgroup.procs && exec "$@"' if cgroup is not None else 'exec "$@"'
        launcher = ["sh", "-c", enter, "sh", sys.executable, str(LAUNCH)]
        settings = settings_text(backoff=Range(0.05, 60.0))
        with launched(tmp_path / "logdir", settings, str(tmp_path / "train.py"), launcher=launcher) as run:
            assert run.wait_end() == 0
    ended = next(entry for entry in run.events("exited") if entry["role"] == "trainer")
    assert ended["signal"] == "SIGKILL"
    if cgroup is None:
        assert (ended["cause"], ended["evidence"]) == ("killed", "SIGKILL, sender unknown")
    else:
        assert ended["cause"] == "oom"
        assert f"(oom_kill 0 -> 1 in {cgroup}/" in ended["evidence"]
        assert "out of memory" in (run.logdir / "procsv" / "crashes" / "1.txt").read_text().splitlines()[0]
