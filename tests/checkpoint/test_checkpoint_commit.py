"""Whatever moment a commit is killed at, or a disk call fails at: what was acknowledged can be restored."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from procsv.ipc.clock import SystemClock
from procsv.ipc.messages import SaverPlan
from procsv.services.checkpoint.bundle import check_contents, check_structure, scalar_int
from procsv.services.checkpoint.facts import State
from procsv.services.checkpoint.state_file import read_state
from procsv.services.checkpoint.store import Store

MUTATIONS = ("rename", "replace", "unlink", "link", "mkdir", "rmdir", "fsync", "write", "open")


class Killed(BaseException):
    """The process is dead from here on."""


@dataclass
class Disk:
    """Counts the calls that change the disk; kills the process, or fails once, at number `at`."""

    at: int = -1
    error: int = 0  # errno; 0: killed
    count: int = 0
    is_dead: bool = False
    real: dict[str, Callable[..., Any]] = field(default_factory=lambda: {n: getattr(os, n) for n in MUTATIONS})

    def mend(self) -> None:
        for name, call in self.real.items():
            setattr(os, name, call)

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if self.is_dead:
            raise Killed
        if name == "open" and not args[1] & os.O_CREAT:
            return self.real[name](*args, **kwargs)
        self.count += 1
        if self.count == self.at:
            if self.error:
                raise OSError(self.error, os.strerror(self.error), name)
            if name == "write":
                self.real[name](args[0], bytes(args[1])[: len(args[1]) // 2])
            self.is_dead = True
            raise Killed
        return self.real[name](*args, **kwargs)


@pytest.fixture
def breakable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Disk]]:
    def install(at: int, error: int = 0) -> Disk:
        disk = Disk(at, error)
        for name in MUTATIONS:
            monkeypatch.setattr(os, name, lambda *a, _name=name, **k: disk.call(_name, *a, **k))
        return disk

    yield install
    monkeypatch.undo()


@pytest.fixture(scope="session")
def prebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints `<step>/<name>` as a Saver stages them; step 3 has two shards."""
    top = tmp_path_factory.mktemp("prebuilt")
    for step in range(1, 6):
        (top / str(step)).mkdir()
        for name in ("model.ckpt", f"model.ckpt-{step}"):
            prefix = str(top / str(step) / name)
            names, values = ["a", "global_step"], [np.full(50, step, np.float32), np.array(step, np.int64)]
            if step == 3:
                parts = [f"{prefix}_temp/part-0000{i}-of-00002" for i in range(2)]
                for part, n, v in zip(parts, names, values, strict=True):
                    tf.raw_ops.SaveV2(prefix=part, tensor_names=[n], shape_and_slices=[""], tensors=[v])
                tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=prefix)
            else:
                tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[""] * 2, tensors=values)
    return top


@dataclass
class Case:
    """Commits in one logdir."""

    run: Any
    plan: SaverPlan
    prebuilt: Path
    named: bool
    acknowledged: int = -1

    def store(self) -> Store:
        return Store(self.run.start(), SystemClock())

    def commit(self, step: int, store: Store) -> None:
        name = f"model.ckpt-{step}" if self.named else "model.ckpt"
        staged = self.run.places.shm_dir / f"staged.{step}"
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir()
        for path in (self.prebuilt / str(step)).glob(f"{name}.*"):
            (staged / path.name).write_bytes(path.read_bytes())
        state = State(step, step, 1, self.run.id, None, str(staged / name))
        durable = store.persist(state, "periodic", self.plan)
        self.acknowledged = durable.step

    def check(self, at_most: int) -> None:
        """What a service that starts now finds."""
        store = self.store()
        store.open()
        stock = store.take_stock(self.plan)
        found = store.find(self.plan)
        if found.checkpoint is None:
            assert (self.acknowledged, found.exists, found.error) == (-1, False, "")
        else:
            assert self.acknowledged <= found.checkpoint.step <= at_most
            assert stock.newest_step == found.checkpoint.step
            bundle = check_structure(found.checkpoint.path)
            check_contents(bundle)
            assert found.checkpoint.step == scalar_int(bundle, "global_step")
        assert found.rejected == (), "something incomplete was nearly chosen"
        for path in found.kept:
            check_contents(check_structure(path))
        self.check_nothing_is_left(set(found.kept))

    def check_nothing_is_left(self, kept: set[str]) -> None:
        names = [p.name for p in self.run.logdir.iterdir()]
        assert [n for n in names if n.startswith(".")] == []
        for name in names:
            if ".data-" in name or name.endswith((".index", ".manifest.json", ".meta")):
                base = (
                    name.split(".data-")[0].removesuffix(".index").removesuffix(".manifest.json").removesuffix(".meta")
                )
                assert str(self.run.logdir / base) in kept, f"{name} is left over"
        for where in ("staging", "replaced"):
            directory = self.run.places.home / where
            assert not directory.exists() or list(directory.iterdir()) == []

    def what_tensorflow_sees(self) -> int:
        """The step of the checkpoint that a plain Saver would restore; -1 if there is none."""
        state = read_state(self.run.logdir / "checkpoint")
        if state is None:
            return -1
        bundle = check_structure(state.latest)
        check_contents(bundle)
        return scalar_int(bundle, "global_step") or -1


SCENARIOS = {
    "the first": ([], 1, True, 5),
    "one more": ([1, 2], 4, True, 5),
    "one that pushes out the oldest": ([1, 2], 4, True, 2),
    "one that pushes out all older ones": ([1, 2], 4, True, 1),
    "the same name again": ([2], 2, True, 5),
    "a name without a step": ([1], 2, False, 5),
    "more shards under the same name": ([1], 3, False, 5),
    "fewer shards under the same name": ([3], 4, False, 5),
}


@pytest.fixture(params=SCENARIOS)
def scenario(request: pytest.FixtureRequest, run: Any, plan: Any, prebuilt: Path) -> Any:
    before, last, named, keep = SCENARIOS[request.param]

    def fresh() -> Case:
        shutil.rmtree(run.logdir)
        run.logdir.mkdir()
        meta = run.logdir.parent / "meta"
        meta.write_bytes(b"graph")
        case = Case(run, plan(max_to_keep=keep, meta_path=str(meta)), prebuilt, named)
        store = case.store()
        store.open()
        for step in before:
            case.commit(step, store)
        return case

    return fresh, last


def test_a_commit_that_is_killed_at_any_call_leaves_what_was_acknowledged(scenario: Any, breakable: Any) -> None:
    fresh, last = scenario
    at, done = 0, False
    while not done:
        at += 1
        case: Case = fresh()
        store = case.store()
        disk = breakable(at)
        try:
            case.commit(last, store)
        except Killed:
            pass
        else:
            done = True
        finally:
            disk.mend()
        if case.named and case.acknowledged != last:
            assert case.what_tensorflow_sees() in (case.acknowledged, last)
        case.check(at_most=last)
    assert at > 10, "the disk was not watched"


def test_a_recovery_that_is_killed_at_any_call_is_taken_up_again(scenario: Any, breakable: Any) -> None:
    fresh, last = scenario
    for at in range(9, 60, 4):
        for again in (1, 2, 3, 5, 8, 13):
            case: Case = fresh()
            store = case.store()
            disk = breakable(at)
            with contextlib.suppress(Killed):
                case.commit(last, store)
            disk.mend()
            disk = breakable(again)
            with contextlib.suppress(Killed):
                case.store().open()
            disk.mend()
            case.check(at_most=last)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_call_that_fails_leaves_what_was_acknowledged_and_the_next_try_succeeds(
    scenario: Any, breakable: Any, error: int
) -> None:
    fresh, last = scenario
    at, reached = 0, True
    while reached:
        at += 1
        case: Case = fresh()
        store = case.store()
        before = case.acknowledged
        disk = breakable(at, error)
        try:
            case.commit(last, store)
        except OSError:
            assert case.acknowledged == before
        finally:
            disk.mend()
        reached = disk.count >= at
        found = store.find(case.plan)
        step = found.checkpoint.step if found.checkpoint else -1
        assert step == case.acknowledged, f"call {at}"
        assert found.rejected == ()
        case.commit(last, store)
        case.check(at_most=last)
    assert at > 10, "the disk was not watched"
