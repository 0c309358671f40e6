"""Record when checkpoints and snapshots are taken, by wrapping the calls that take them from
outside.

Called by trial.py before training. It changes nothing about the wrapped calls, and costs two clock
reads per call.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from procsv.base.journal.entries import CheckpointDurable
from procsv.base.journal.file import read_journal
from procsv.base.system.disk import fsync_path
from procsv.base.system.system_clock import SystemClock
from scripts.benchmarks.model import Session


@dataclass(slots=True)
class Recording:
    """Times are monotonic seconds. A snapshot ends when it is published; `stall_s` is how long a
    step waited for it.
    """

    saves: list[tuple[float, float]] = field(default_factory=list)
    snapshots: list[tuple[float, float]] = field(default_factory=list)
    stalls_s: list[float] = field(default_factory=list)
    written: list[tuple[int, float]] = field(default_factory=list)  # (bytes, seconds) of each checkpoint
    synced: list[tuple[int, float]] = field(default_factory=list)  # the same, until its files were on disk


@dataclass(frozen=True, slots=True)
class Restore:
    """`asked_s`: the part of `seconds` spent asking the checkpoint service where the newest state
    is.

    `again_s`: the time to feed the state in memory to the same session again, when its variables
    have their memory.
    """

    source: str  # memory, checkpoint, fresh
    seconds: float
    asked_s: float
    again_s: float | None = None


def record_savers(recording: Recording, sync: bool = False) -> None:
    """Record every `Saver.save` in this process, on any thread; with `sync`, each is followed by an
    fsync of its files.
    """
    saver = tf.compat.v1.train.Saver
    save = saver.save

    @functools.wraps(save)
    def timed(*args: object, **kwargs: object) -> object:
        begun_s = time.monotonic()
        path: str | None = save(*args, **kwargs)
        ended_s = time.monotonic()
        recording.saves.append((begun_s, ended_s))
        if path:
            recording.written.append((bytes_of(path), ended_s - begun_s))
            if sync:
                for file in files_of(path):
                    fsync_path(file)
                recording.synced.append((bytes_of(path), time.monotonic() - begun_s))
        return path

    saver.save = timed


def bytes_of(path: str) -> int:
    """Return the size of a checkpoint's data and index."""
    return sum(file.stat().st_size for file in files_of(path))


def files_of(path: str) -> list[Path]:
    prefix = Path(path)
    return [*prefix.parent.glob(f"{prefix.name}.data-*"), *prefix.parent.glob(f"{prefix.name}.index")]


def record_snapshots(recording: Recording) -> None:
    """Record every snapshot that procsv takes by its cadence: the visit at the boundary that took
    it, and its end.
    """
    from procsv.training.snapshots.cadence import Cadence
    from procsv.training.snapshots.snapshotter import Snapshotter

    visits: list[tuple[float, float]] = []
    lock = threading.Lock()
    capture_due: Callable[[Any], None] = Snapshotter.capture_due
    learn: Callable[..., None] = Cadence.learn

    def timed_visit(self: Snapshotter) -> None:
        begun_s = time.monotonic()
        capture_due(self)
        ended_s = time.monotonic()
        with lock:
            visits.append((begun_s, ended_s))

    def noted_learn(
        self: Cadence, stall_s: float, copy_s: float, lost_s: float | None = None, step_s: float = 0.0
    ) -> None:
        ended_s = time.monotonic()
        learn(self, stall_s, copy_s, lost_s, step_s)
        with lock:
            longest = max(visits, key=lambda span: span[1] - span[0], default=None)  # the others had nothing due
            visits.clear()
        if (
            longest is not None and longest[1] - longest[0] >= stall_s
        ):  # otherwise it was taken on demand, not by a visit
            recording.snapshots.append((longest[0], ended_s))
            recording.stalls_s.append(longest[1] - longest[0])

    Snapshotter.capture_due = timed_visit  # type: ignore[method-assign]
    Cadence.learn = noted_learn  # type: ignore[method-assign]


def record_restores(note: Callable[[Restore], None], again: bool) -> None:
    """Call `note` after every restore: procsv's from memory or a checkpoint, and Saver.restore.
    `again`: see Restore.
    """
    from procsv.ipc.messaging.checkpoint_messages import RestoreFrom
    from procsv.training.runtime.context import Runtime
    from procsv.training.sessions import session_manager as ours
    from procsv.training.snapshots import restore_client
    from procsv.training.snapshots.restore_client import Origin
    from procsv.training.snapshots.source import StateSource

    saver = tf.compat.v1.train.Saver
    feed, read = ours.restore_into, saver.restore
    ask, restore_slot = restore_client.ask_newest, restore_client.restore_slot
    asked_s: list[float] = []
    again_s: list[float] = []
    is_ours = threading.Event()  # procsv may call Saver.restore

    def timed_ask(runtime: Runtime, durable_only: bool) -> RestoreFrom:
        begun_s = time.monotonic()
        answer = ask(runtime, durable_only)
        asked_s.append(time.monotonic() - begun_s)
        return answer

    def fed_twice(path: Path, source: StateSource) -> None:
        restore_slot(path, source)
        begun_s = time.monotonic()  # before the restore is announced, so that nothing is being written
        restore_slot(path, source)
        again_s.append(time.monotonic() - begun_s)

    def timed_feed(runtime: Runtime, session: Session, saver: Session) -> Origin:
        is_ours.set()
        asked_s.clear()
        again_s.clear()
        begun_s = time.monotonic()
        origin = feed(runtime, session, saver)
        seconds = time.monotonic() - begun_s - sum(again_s)
        note(Restore(origin.source, seconds, sum(asked_s), again_s[0] if again_s else None))
        is_ours.clear()
        return origin

    @functools.wraps(read)
    def timed_read(*args: object, **kwargs: object) -> None:
        begun_s = time.monotonic()
        read(*args, **kwargs)
        if not is_ours.is_set():
            note(Restore("checkpoint", time.monotonic() - begun_s, 0.0))

    ours.restore_into, restore_client.ask_newest, saver.restore = timed_feed, timed_ask, timed_read
    if again:
        restore_client.restore_slot = fed_twice


def record_journal(recording: Recording, logdir: Path) -> None:
    """Record the checkpoints that the checkpoint service wrote; call this after the end."""
    clock = SystemClock()
    to_monotonic_s = clock.monotonic() - clock.wall()
    for line in read_journal(logdir / "procsv" / "journal.jsonl"):
        if isinstance(saved := line.entry, CheckpointDurable):
            ended_s = line.time + to_monotonic_s
            recording.saves.append((ended_s - saved.seconds, ended_s))
            recording.written.append((saved.bytes, saved.seconds))
