"""The dead leave snapshots in memory, which are attributed to the attempt that took them."""

from __future__ import annotations

from pathlib import Path

from procsv.base.identity import TRAINER
from procsv.base.outcome import NO_STEP, Exit
from procsv.base.run.paths import RunPaths
from procsv.ipc.shm.slot_file import SlotPool
from procsv.watchdog.host.ports import Dead
from procsv.watchdog.host.post_mortem import PostMortem
from tests.ipc.shm.snapshots import RUN, publish


def leave_snapshot(paths: RunPaths, attempt: int, step: int) -> None:
    pool = SlotPool(paths.shm_dir, RUN, TRAINER, attempt)
    pool.reserve(100, count=1)
    writer = pool.begin_snapshot()
    assert writer is not None
    publish(writer, attempt, {"w": b"weights"}, step=step)
    pool.close()


def test_the_newest_snapshots_step_is_found_and_the_dead_attempts_own(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "logdir", tmp_path / "run", tmp_path / "shm")
    paths.shm_dir.mkdir()
    dead = PostMortem(paths)
    assert dead.examine(Dead(TRAINER, 1, 7, Exit(None, 9)), None).taken_step == NO_STEP

    leave_snapshot(paths, 1, 70)  # a state that the next attempt was told not to resume
    leave_snapshot(paths, 2, 50)
    ends = [dead.examine(Dead(TRAINER, attempt, 7, Exit(None, 9)), None) for attempt in (1, 2, 3)]
    assert [(end.memory_step, end.taken_step) for end in ends] == [(70, 70), (70, 50), (70, NO_STEP)]
