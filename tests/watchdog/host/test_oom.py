"""Evidence of an out-of-memory kill comes from the kernel's files. Also the memory limit and who uses the GPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from procsv.watchdog.edge.resources.machine import MachineMemory, over_limit
from procsv.watchdog.host.gpu import LEAVE_S_MAX, Gpus
from procsv.watchdog.host.post_mortem import (
    KillCounters,
    find_counters,
    read_kills,
)
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


def test_row_13_files_without_information_are_no_evidence(tmp_path: Path) -> None:
    assert find_counters("0::/nowhere\n", tmp_path) == []
    assert read_kills(tmp_path / "absent") is None
    assert read_kills(write(tmp_path / "garbled", "oom_kill many\n\x00")) is None
    assert KillCounters([tmp_path / "absent"]).news() == ""


def test_the_limit_covers_the_whole_tree_and_is_reported_in_words() -> None:
    memory = MachineMemory()
    own = memory.tree_rss(os.getpid())

    assert own > 2**20
    assert memory.tree_rss(2**22 + 1) == 0  # no such process
    assert over_limit(own, 0) == over_limit(own, own) == ""
    assert over_limit(3 * 2**30, 2**30) == Naming(" 3.0 GiB ", " 1.0 GiB")
    assert 0 < memory.host_memory()["available"] <= memory.host_memory()["total"]


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
    assert not gpus.are_left(101.0)
    assert gpus.are_left(100.0 + LEAVE_S_MAX)

    gpus.expect_to_leave(12, 200.0)
    sys.modules["pynvml"].users[0].remove(12)
    assert gpus.are_left(201.0)
    sys.modules.pop("pynvml")


def test_without_the_library_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpus = Gpus()
    gpus.expect_to_leave(os.getpid(), 100.0)

    assert gpus.are_left(100.0)
