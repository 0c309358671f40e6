"""The memory of a template is moved into huge pages, where the kernel has them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.programs import DEADLINE_S, ROOT

PROGRAM = """
import ctypes, mmap
from pathlib import Path
from procsv.testing.template.huge_pages import use_huge_pages

def huge_kb():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))

def can_collapse():
    memory = mmap.mmap(-1, 2**23, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(bytes(2**23))
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + 2**21 & -(2**21)
    return not ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(2**21), 25)  # MADV_COLLAPSE

block = bytearray(range(256)) * 2**18
before, whole, moved = huge_kb(), bytes(block), use_huge_pages()
assert block == whole, "it has other contents now"
assert huge_kb() - before >= moved // 1024 >= 0
print(can_collapse(), moved)
"""


def test_memory_in_huge_pages_holds_what_it_held() -> None:
    said = subprocess.check_output([sys.executable, "-c", PROGRAM], cwd=ROOT, timeout=DEADLINE_S, text=True)
    can_collapse, moved = said.split()
    if can_collapse == "False":
        pytest.skip("this kernel gives no huge pages to who asks for them")
    assert int(moved) >= 2**26 - 2**22
