"""Row 54: shared memory that a program shared with its workers is unlinked after its death."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launched import launched

pytestmark = pytest.mark.fault

# Its first start dies with a worker that uses shared memory and a semaphore; the argument says how.
PROGRAM = """
import ctypes, multiprocessing, os, signal, sys, time
from multiprocessing import shared_memory

def work(name, gate, ready):
    memory = shared_memory.SharedMemory(name=name)
    ready.set()
    with gate:
        memory.close()

if __name__ == "__main__" and os.environ["PROCSV_INCARNATION"] == "1":
    memory = shared_memory.SharedMemory(create=True, size=4096)
    spawn = multiprocessing.get_context("spawn")
    gate, ready = spawn.Semaphore(0), spawn.Event()
    spawn.Process(target=work, args=(memory.name, gate, ready)).start()
    assert ready.wait(60)
    print("shares", memory.name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1] == "killed" else ctypes.string_at(0)
"""


@pytest.mark.parametrize("how", ["killed", "crashed"])
def test_row_54_a_dead_programs_resource_tracker_unlinks_its_shared_memory(tmp_path: Path, how: str) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    with launched(tmp_path / "run", "--backoff", "0s..0s", "train.py", how, cwd=tmp_path) as run:
        assert run.wait_end() == 0
        assert len(run.events("exited", "trainer")) == 2
    name = next(line.split()[1] for line in run.said().splitlines() if line.startswith("shares"))
    assert not Path("/dev/shm", name).exists()


@pytest.mark.long
def test_a_process_that_only_looks_like_a_tracker_is_killed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, subprocess, sys\n"
        "if os.environ['PROCSV_INCARNATION'] == '1':\n"
        "    code = 'import time; print(0) if 1 else None; time.sleep(1000)  # from my.resource_tracker import main'\n"
        "    print('left', subprocess.Popen([sys.executable, '-c', code]).pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    with launched(tmp_path / "run", "--backoff", "0s..0s", "train.py", cwd=tmp_path) as run:
        assert run.wait_end() == 0
    pid = next(line.split()[1] for line in run.said().splitlines() if line.startswith("left"))
    assert not Path("/proc", pid).exists()
