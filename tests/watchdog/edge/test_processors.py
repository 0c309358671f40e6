"""The number of processors for a process: its affinity, and the quotas of its control groups."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from procsv.watchdog.edge.resources.machine import count_processors

MANY = 64


@pytest.fixture(autouse=True)
def _many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(MANY)))


def count(root: Path, membership: str, files: Mapping[str, str]) -> float:
    """Count with these control group files, for a process in the groups of `membership`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "membership").write_text(membership)
    return count_processors(root, root / "membership")


def test_without_a_quota_the_affinity_counts(tmp_path: Path) -> None:
    assert count(tmp_path, "0::/user.slice/job\n", {"user.slice/job/cpu.max": "max 100000\n"}) == MANY
    assert count_processors(tmp_path, tmp_path / "nowhere") == MANY


def test_the_smallest_quota_of_the_processs_groups_counts(tmp_path: Path) -> None:
    groups = {"pods/a/cpu.max": "1600000 100000\n", "pods/cpu.max": "250000 100000\n"}
    assert count(tmp_path, "0::/pods/a\n", {**groups, "other/cpu.max": "100000 100000\n"}) == 2.5


def test_a_container_whose_group_is_its_root_has_that_quota_in_both_versions(tmp_path: Path) -> None:
    assert count(tmp_path / "new", "0::/\n", {"cpu.max": "400000 100000\n"}) == 4.0
    old = {"cpu/box/cpu.cfs_quota_us": "150000\n", "cpu/box/cpu.cfs_period_us": "100000\n"}
    assert count(tmp_path / "old", "4:memory:/box\n3:cpu,cpuacct:/box\n", old) == 1.5


def test_an_absent_or_unreadable_quota_is_no_limit(tmp_path: Path) -> None:
    none = {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}
    assert count(tmp_path / "none", "3:cpu:/\n", none) == MANY
    assert count(tmp_path / "garbled", "0::/\n", {"cpu.max": "a b c\n"}) == MANY
