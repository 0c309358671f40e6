"""The memory of a step: kept for the next one, unless the user has a word with malloc."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from procsv.training.process.malloc import keep_memory

STEPS = """
import os, resource, sys
import numpy as np
from procsv.training.process.malloc import keep_memory
print(keep_memory(os.environ) if sys.argv[1] == "keep" else None)

def step():
    for tensor in [np.empty(30_000_000, np.uint8) for _ in range(4)]:
        tensor.fill(1)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

step(), step()
before = faults()
for _ in range(10):
    step()
print(faults() - before)
"""
OWN = {"MALLOC_ARENA_MAX": "2"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}, {"LD_PRELOAD": "/lib/libjemalloc.so.2"}


def train(how: str) -> tuple[str, int]:
    """What keep_memory said, and the page faults of ten steps after the first."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_", "LD_PRELOAD"))}
    command = [sys.executable, "-c", STEPS, how]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    said, faults = done.stdout.split()
    return said, int(faults)


def test_a_step_uses_the_memory_of_the_one_before() -> None:
    said, faults = train("keep")
    assert said == "True"
    assert faults < 100
    assert train("system")[1] > 1000, "else nothing has to be kept"


@pytest.mark.parametrize("environment", OWN, ids=[*(next(iter(own)) for own in OWN)])
def test_whoever_has_a_word_with_malloc_himself_keeps_it(environment: dict[str, str]) -> None:
    assert keep_memory(environment) is False
