"""Flood a port with connections, as many and as fast as possible, and send nothing on any of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

HELD_MAX = 1500  # held open at a time, by each thread
FLOOD = f"""
import resource, socket, sys, threading

def go():
    held = []
    while True:
        try:
            held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), 0.2))
        except OSError:
            pass
        del held[:-{HELD_MAX}]

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
for _ in range(3):
    threading.Thread(target=go).start()
"""


@contextmanager
def flood(port: int) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", FLOOD, str(port)])
    try:
        yield
    finally:
        process.kill()
        process.wait()
