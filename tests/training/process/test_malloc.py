"""A step's memory is kept for the next one, unless the user configures malloc."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from procsv.training.process.bootstrap import keep_memory

STEPS = """
import os, resource, sys, threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from procsv.training.process.bootstrap import keep_memory
print(keep_memory(os.environ) if sys.argv[1] == "keep" else None)

def work(size, meet=lambda: None):
    tensors = [np.empty(size, np.uint8) for _ in range(4)]
    for tensor in tensors:
        tensor.fill(1)
    meet()

def step():
    if sys.argv[2] == "itself":
        work(30_000_000)
    else:
        list(pool.map(work, [3_000_000] * 8))

def first_step():  # the most that any step has at a time: later ones may have less, by how their threads take turns
    if sys.argv[2] == "itself":
        return step()
    together = threading.Barrier(4)
    list(pool.map(lambda size: work(size, together.wait), [3_000_000] * 8))

pool = ThreadPoolExecutor(4)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

first_step(), step()
before = faults()
for _ in range(10):
    step()
print(faults() - before)
"""
OWN = {"MALLOC_ARENA_MAX": "2"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}, {"LD_PRELOAD": "/lib/libjemalloc.so.2"}


def train(how: str, where: str) -> tuple[str, int]:
    """Return keep_memory's answer and the page faults of ten steps after the first. `where`: the
    program or its threads.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_", "LD_PRELOAD"))}
    command = [sys.executable, "-c", STEPS, how, where]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    said, faults = done.stdout.split()
    return said, int(faults)


@pytest.mark.parametrize(("where", "few"), [("itself", 100), ("threads", 1000)])
def test_a_step_reuses_the_previous_ones_memory(where: str, few: int) -> None:
    said, faults = train("keep", where)
    assert said == "True"
    assert faults < few
    assert train("system", where)[1] > 2 * few, "else nothing has to be kept"


@pytest.mark.parametrize("environment", OWN, ids=[*(next(iter(own)) for own in OWN)])
def test_a_users_own_malloc_settings_are_kept(environment: dict[str, str]) -> None:
    assert keep_memory(environment) is False
