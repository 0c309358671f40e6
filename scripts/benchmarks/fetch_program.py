"""The other end of the table `fetch`: offer a snapshot repeatedly, or write a checkpoint and read
it.

Started by fetch.py. Each time it prints "= " and an offer, or the seconds of the write and of the
read.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from procsv.base.identity import TRAINER
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.bulk.sender import Sender
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.ipc.shm.slot_file import SlotPool
from procsv.ipc.shm.slot_header import HEADER_BYTES
from procsv.ipc.shm.slot_index import Contents, TensorEntry, align

TENSORS = 50
PLAN = CheckpointPlan("/l/model.ckpt", "checkpoint", 600.0, 5, 10000.0, False, False, "")


def offer(mb: float, count: int, shm: Path) -> None:
    pool = SlotPool(shm, "0123456789abcdef", TRAINER, 1)
    pool.reserve(int(mb * 1e6) + 2**20, count=1)
    writer = pool.begin_snapshot()
    assert writer is not None, "a new slot is free"
    at, entries = HEADER_BYTES, []
    for number in range(TENSORS):
        at, data = align(at), np.random.default_rng(number).bytes(int(mb * 1e6 / TENSORS))
        writer.memory[at : at + len(data)] = data
        entries.append(
            TensorEntry(f"v{number}", "", "uint8", (len(data),), at, len(data), xxhash.xxh3_64_intdigest(data))
        )
        at += len(data)
    slot = writer.publish_slot(1, 1, Contents(PLAN, False, (tuple(entries),), 1, "bench"), at)
    sender = Sender(0, SystemClock())
    for _ in range(count):
        print("=", msgspec.json.encode(sender.offer(slot)).decode(), flush=True)
    threading.Event().wait()


def read(mb: float, count: int, folder: Path) -> None:
    import tensorflow as tf  # not needed for offers

    values = [np.random.default_rng(number).bytes(int(mb * 1e6 / TENSORS)) for number in range(TENSORS)]
    checkpoint = tf.train.Checkpoint(v=[tf.Variable(np.frombuffer(value, np.uint8)) for value in values])
    for number in range(count):
        begun_s = time.monotonic()
        prefix = checkpoint.write(str(folder / f"ckpt-{number}"))
        files = list(folder.glob(f"ckpt-{number}.*"))
        for file in files:
            _sync(file)
        written_s = time.monotonic() - begun_s
        for file in files:
            _drop_from_cache(file)
        begun_s = time.monotonic()
        checkpoint.read(prefix).assert_consumed()
        print("=", written_s, time.monotonic() - begun_s, flush=True)


def _sync(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def _drop_from_cache(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


if __name__ == "__main__":
    what, mb, count, folder, shm = sys.argv[1:]
    if what == "offer":
        offer(float(mb), int(count), Path(shm))
    else:
        read(float(mb), int(count), Path(folder))
