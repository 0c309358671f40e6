"""Evidence of an out-of-memory kill comes from the kernel's files. Also the memory limit and who uses the GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from procsv.watchdog.edge.resources.machine import MachineMemory, over_limit
from procsv.watchdog.host.gpu import LEAVE_S_MAX, Gpus
from procsv.watchdog.host.post_mortem import LOOK_S, KillCounters, find_counters, read_kills
from tests.support.naming import Naming

V2 = "low 0\nhigh 12\nmax 40\noom 3\noom_kill {}\noom_group_kill 0\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_row_13_the_counters_of_our_cgroup_and_its_parents_are_found_in_both_versions(tmp_path: Path) -> None:
    own = write(tmp_path / "run.slice" / "job" / "memory.events", V2.format(0))
    above = write(tmp_path / "run.slice" / "memory.events", V2.format(0))
    assert find_counters("0::/run.slice/job\n", tmp_path) == [own, above]

    old = write(tmp_path / "memory" / "box" / "memory.oom_control", V1.format(0))
    root = write(tmp_path / "memory" / "memory.oom_control", V1.format(0))
    assert find_counters("5:cpu,cpuacct:/box\n4:memory:/box\n0::/elsewhere\n", tmp_path) == [old, root]


def test_row_13_a_counter_that_rose_is_evidence_once(tmp_path: Path) -> None:
    own = write(tmp_path / "a" / "memory.events", V2.format(2))
    above = write(tmp_path / "memory.events", V2.format(7))
    kills = KillCounters([own, above])
    assert kills.news() == ""
    assert kills.news() == ""

    own.write_text(V2.format(3))
    above.write_text(V2.format(8))
    assert kills.news() == Naming(f"(oom_kill 2 -> 3 in {own})")
    assert kills.news() == ""


def test_row_13_an_earlier_kill_of_another_program_of_the_group_is_no_evidence(tmp_path: Path) -> None:
    own = write(tmp_path / "memory.events", V2.format(2))
    kills = KillCounters([own])
    kills.news()
    own.write_text(V2.format(3))
    for number in range(2):
        kills.look(number * LOOK_S)
    assert kills.news() == ""

    own.write_text(V2.format(4))
    kills.look(2 * LOOK_S)  # the process is still dying
    assert kills.news() == Naming(f"(oom_kill 3 -> 4 in {own})")


def test_row_13_files_without_information_are_no_evidence(tmp_path: Path) -> None:
    assert find_counters("0::/nowhere\n", tmp_path) == []
    assert read_kills(tmp_path / "absent") is None
    assert read_kills(write(tmp_path / "garbled", "oom_kill many\n\x00")) is None
    assert KillCounters([tmp_path / "absent"]).news() == ""


def test_the_limit_covers_the_whole_tree_and_is_reported_in_words() -> None:
    memory = MachineMemory()
    own = memory.tree_memory(os.getpid(), 0)

    assert own > 2**20
    assert memory.tree_memory(2**22 + 1, 0) == 0  # no such process
    assert over_limit(own, 0) == over_limit(own, own) == ""
    assert over_limit(3 * 2**30, 2**30) == Naming(" 3.0 GiB ", " 1.0 GiB")
    assert 0 < memory.host_memory()["available"] <= memory.host_memory()["total"]


FORKS = """
import os, signal, sys
data = b"x" * (200 << 20)
if any(os.fork() == 0 for _ in range(3)):
    signal.pause()
print("forked", flush=True)
signal.pause()
"""


def test_memory_that_a_program_shares_with_its_forks_counts_once() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], stdout=subprocess.PIPE, start_new_session=True, text=True
    ) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "forked\n"
            used = MachineMemory().tree_memory(program.pid, 500 * 2**20)
            assert 200 * 2**20 < used < 300 * 2**20
        finally:
            os.killpg(program.pid, signal.SIGKILL)


NVML = """
import types
users = [[11, 12], [13]]
def nvmlInit(): pass
def nvmlDeviceGetCount(): return len(users)
def nvmlDeviceGetHandleByIndex(n): return n
def nvmlDeviceGetComputeRunningProcesses(device):
    if device == 1:
        raise RuntimeError("not supported")
    return [types.SimpleNamespace(pid=pid) for pid in users[device]]
"""


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake of NVIDIA's library with just the calls that are used. There is no GPU here."""
    (tmp_path / "pynvml.py").write_text(NVML)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)


@pytest.mark.usefixtures("nvml")
def test_a_dead_trainer_is_waited_for_until_it_has_left_the_gpu_but_not_forever() -> None:
    gpus = Gpus()
    gpus.expect_to_leave(12, 100.0)
    assert not gpus.wait_is_over(101.0)
    assert gpus.wait_is_over(100.0 + LEAVE_S_MAX)

    gpus.expect_to_leave(12, 200.0)
    sys.modules["pynvml"].users[0].remove(12)
    assert gpus.wait_is_over(201.0)
    sys.modules.pop("pynvml")


@pytest.mark.usefixtures("nvml")
def test_two_trainers_that_die_together_are_both_waited_for() -> None:
    gpus = Gpus()
    gpus.expect_to_leave(12, 100.0)
    gpus.expect_to_leave(14, 100.5)  # it uses no GPU
    assert not gpus.wait_is_over(101.0)
    gpus.expect_to_leave(11, 105.0)
    assert not gpus.wait_is_over(100.0 + LEAVE_S_MAX)
    assert gpus.wait_is_over(105.0 + LEAVE_S_MAX)
    sys.modules.pop("pynvml")


def test_without_the_library_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpus = Gpus()
    gpus.expect_to_leave(os.getpid(), 100.0)

    assert gpus.wait_is_over(100.0)
