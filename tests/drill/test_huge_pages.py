"""The memory of a template is moved into huge pages, where the kernel has them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import DEADLINE_S, ROOT

PROGRAM = """
from pathlib import Path
from procsv.testing.template.huge_pages import use_huge_pages

def huge_kb():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))

block = bytearray(range(256)) * 2**18
before, whole, moved = huge_kb(), bytes(block), use_huge_pages()
assert block == whole, "it has other contents now"
assert huge_kb() - before >= moved // 1024 >= 0
print(moved)
"""


def test_memory_in_huge_pages_holds_what_it_held() -> None:
    moved = int(subprocess.check_output([sys.executable, "-c", PROGRAM], cwd=ROOT, timeout=DEADLINE_S))
    if not Path("/sys/kernel/mm/transparent_hugepage").exists() or not moved:
        pytest.skip("this kernel gives no huge pages")
    assert moved >= 2**26 - 2**22
