"""Checkpoints made one after the other in one logdir by the real store, and what a service that starts later must find.

Called by the tests of the store against kills, failing disks and power losses.  Knows every byte of every checkpoint that
was acknowledged.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan, Durable
from procsv.ipc.messaging.start import Start
from procsv.ipc.shm.slot_file import SlotPool
from procsv.ipc.shm.slot_index import prefix_of
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.services.checkpoint.core.facts import FoundCheckpoint, SavableState
from procsv.services.checkpoint.format.names import has_files, model_files
from procsv.services.checkpoint.format.state_file import read_state, write_state
from procsv.services.checkpoint.store import write
from procsv.services.checkpoint.store.checkpoint_store import Store
from procsv.services.checkpoint.store.local_files import LocalFiles

Files = dict[str, bytes]


def local_store(start: Start, *on_change: Any) -> Store:
    """The service's disk side, of a directory."""
    clock = SystemClock()
    return Store(start, clock, LocalFiles(start, clock, *on_change))


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What the world was told, and the files that it was told of."""

    step: int
    path: str
    listed: tuple[str, ...]


@dataclass
class Commits:
    """A logdir under test.  Step 3 has two shards; `named` False: every checkpoint has the same name."""

    run: Any
    plan: CheckpointPlan
    publish: Callable[..., Any]
    named: bool = True
    ahead: int = 0  # how much larger values and sequences are than the step: of another run, which saves other states of the same steps
    staged: bool = False  # the files come from a Saver in the trainer, and lie on another filesystem
    told: Acknowledged | None = None
    bad: set[str] = field(default_factory=set)  # names of checkpoints that may be found damaged
    files: dict[str, list[Files]] = field(default_factory=dict)  # by path, what was ever whole there
    _pool: SlotPool | None = None

    def store(self) -> Store:
        return local_store(self.run.start(logdir=self.plan.save_path.rpartition("/")[0]))

    @property
    def logdir(self) -> Path:
        return Path(self.plan.save_path).parent

    def open_store(self) -> Store:
        """As a service does when it starts."""
        store = self.store()
        store.lineage()
        store.open()
        return store

    def save_all(self, steps: list[int]) -> None:
        store = self.open_store() if steps else None
        for step in steps:
            assert store is not None
            self.commit(step, store)

    def commit(self, step: int, store: Store) -> Durable:
        info = self._fill(step, step + self.ahead)
        state = self._stage(info) if self.staged else SavableState.of_slot(info)
        durable = store.persist(state, "periodic", self.plan)
        self.told = Acknowledged(durable.step, durable.path, durable.all_paths)
        self.remember(durable.path)
        return durable

    def _stage(self, info: Any) -> SavableState:
        directory: Path = self.run.logdir / f"staged.{info.sequence}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        reader = SlotReader(info)
        prefix = write.write_files(
            reader.contents, reader.map, str(directory / Path(prefix_of(reader.contents)).name)
        ).path
        reader.close()
        return SavableState(info.sequence, info.step, 1, self.run.id, None, prefix)

    def save_as_a_user(self, step: int) -> None:
        """What a Saver in the trainer does of its own accord, nothing of it synced."""
        info = self._fill(step, 1000 + step)
        reader = SlotReader(info)
        path = write.write_files(reader.contents, reader.map, f"{self.plan.save_path}-{step}").path
        reader.close()
        self.remember(path)
        state = read_state(self.logdir / self.plan.latest_filename)
        listed = [*(state.all_paths if state else ()), path]
        write_state(self.logdir / self.plan.latest_filename, self.plan.save_path, listed, relative=False)

    def _fill(self, step: int, sequence: int) -> Any:
        if self._pool is not None:
            self._pool.unlink()  # what it held is on disk, or its service was killed
        self._pool = self.run.pool(size=4000)
        values = [("a", "", np.full(50, step + self.ahead, np.float32)), ("global_step", "", np.array(step, np.int64))]
        shards = [[value] for value in values] if step == 3 else [values]
        return self.publish(self._pool, self.plan, shards, sequence, step, named=self.named, sharded=step == 3)

    def remember(self, path: str) -> None:
        """The files of a checkpoint that is whole."""
        self.files.setdefault(path, []).append(read_files(path))

    def search(self) -> FoundCheckpoint:
        """What a service that starts now finds."""
        store = self.open_store()
        stock = store.list_checkpoints(self.plan)
        found = store.find_checkpoint(self.plan)
        if found.checkpoint is not None and not found.rejected:
            assert stock.newest_step == found.checkpoint.step
        return found

    def check(self, told: Acknowledged | None, to_come: Acknowledged | None = None) -> FoundCheckpoint:
        """A service that starts now has all that was acknowledged, bit by bit, and no part of anything else.

        `to_come`: what the commit that was interrupted would have said.
        """
        found = self.search()
        assert {Path(r.path).name for r in found.rejected} <= self.bad, "something incomplete was nearly chosen"
        assert found.error == ""
        if found.checkpoint is None:
            assert told is None, f"{told} is lost"
        else:
            steps = {known.step for known in (told, to_come) if known is not None}
            assert found.checkpoint.step in steps, f"{found.checkpoint.step} is not one of {steps}"
            assert found.kept[-1] == found.checkpoint.path
            state = read_state(self.logdir / self.plan.latest_filename)
            assert state is not None
            listed = tuple(p for p in state.all_paths if has_files(p) or Path(p).name not in self.bad)
            assert (state.latest, listed) == (found.checkpoint.path, found.kept)
        for path in found.kept:
            self.check_whole(path)
        if told is not None:
            staying = set(told.listed) if to_come is None else set(told.listed) & set(to_come.listed)
            assert staying <= set(found.kept), f"{staying - set(found.kept)} was deleted"
        self.check_nothing_is_left(set(found.kept))
        return found

    def check_whole(self, path: str) -> None:
        assert read_files(path) in self.files[path], f"{path} is not what it was"

    def check_what_tensorflow_sees(self, told: Acknowledged | None, to_come: Acknowledged | None) -> None:
        """A plain Saver restores what was acknowledged, or the one after it, before any service has started."""
        state = read_state(self.logdir / self.plan.latest_filename)
        if state is None:
            assert told is None
            return
        assert state.latest in {known.path for known in (told, to_come) if known is not None}
        self.check_whole(state.latest)

    def check_nothing_is_left(self, kept: set[str]) -> None:
        for entry in self.logdir.iterdir():
            assert not entry.name.startswith("."), f"{entry.name} is left over"
            is_bad = any(entry.name.startswith(name) for name in self.bad)
            if entry.name.startswith(Path(self.plan.save_path).name) and not is_bad:
                base = entry.name.split(".data-")[0]
                for suffix in (".index", ".manifest.json", ".meta"):
                    base = base.removesuffix(suffix)
                assert str(self.logdir / base) in kept, f"{entry.name} is left over"
        for where in ("staging", "replaced"):
            directory = self.logdir / "procsv" / where
            assert not directory.exists() or list(directory.iterdir()) == []


def read_files(path: str) -> Files:
    return {file.name: file.read_bytes() for file in model_files(path)}
