"""Make checkpoints in one logdir with the real store, and check what a later service finds there.

Used by the tests that kill the store, fail its disk or cut its power. It knows every byte of every
acknowledged checkpoint.
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
    """Return the disk side of a checkpoint service."""
    clock = SystemClock()
    return Store(start, clock, LocalFiles(start, clock, *on_change))


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What was acknowledged, and the files that must therefore exist."""

    step: int
    path: str
    listed: tuple[str, ...]


@dataclass
class Commits:
    """A logdir under test. Step 3 has two shards. With `named` False every checkpoint has the same name."""

    run: Any
    plan: CheckpointPlan
    publish: Callable[..., Any]
    named: bool = True
    ahead: int = 0  # added to values and sequences, to look like another run with the same steps
    staged: bool = False  # a Saver in the trainer wrote the files, on another filesystem
    told: Acknowledged | None = None
    bad: set[str] = field(default_factory=set)  # names of checkpoints that may be found damaged
    files: dict[str, list[Files]] = field(default_factory=dict)  # by path, every whole version
    _pool: SlotPool | None = None

    def store(self) -> Store:
        return local_store(self.run.start(logdir=self.plan.save_path.rpartition("/")[0]))

    @property
    def logdir(self) -> Path:
        return Path(self.plan.save_path).parent

    def open_store(self) -> Store:
        """Open the store as a starting service does."""
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
        """Save as a program's own Saver does: nothing is synced."""
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
            self._pool.unlink()  # its state is on disk, or its service was killed
        self._pool = self.run.pool(size=4000)
        values = [("a", "", np.full(50, step + self.ahead, np.float32)), ("global_step", "", np.array(step, np.int64))]
        shards = [[value] for value in values] if step == 3 else [values]
        return self.publish(self._pool, self.plan, shards, sequence, step, named=self.named, sharded=step == 3)

    def remember(self, path: str) -> None:
        """Remember the files of a whole checkpoint."""
        self.files.setdefault(path, []).append(read_files(path))

    def search(self) -> FoundCheckpoint:
        """Return what a service finds if it starts now."""
        store = self.open_store()
        stock = store.list_checkpoints(self.plan)
        found = store.find_checkpoint(self.plan)
        if found.checkpoint is not None and not found.rejected:
            assert stock.newest_step == found.checkpoint.step
        return found

    def check(self, told: Acknowledged | None, to_come: Acknowledged | None = None) -> FoundCheckpoint:
        """Check that a service that starts now finds every acknowledged checkpoint bit for bit, and
        no partial one.

        `to_come` is what the interrupted commit would have acknowledged.
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
        """Check that a plain Saver restores the acknowledged checkpoint or the next one, with no
        service running.
        """
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
