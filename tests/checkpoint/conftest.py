"""A run without a trainer: a real checkpoint service, and a stand-in that fills slots and talks as
a trainer does.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from procsv.base.identity import CHECKPOINT, TRAINER, WATCHDOG, TaskId
from procsv.base.run.paths import RunPaths, make_private_dir
from procsv.base.system.processes import Child, spawn
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.ipc.messaging.endpoint import Address, Received
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.messages import Ack, Hello
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Client, Waiter, new_context
from procsv.ipc.shm.slot_file import SlotPool
from procsv.ipc.shm.slot_header import HEADER_BYTES
from procsv.ipc.shm.slot_index import Contents, TensorEntry, align, pack_strings
from procsv.ipc.shm.slot_state import SlotInfo
from procsv.services.checkpoint.store.checkpoint_store import Store
from tests.support.commits import local_store

ROOT = Path(__file__).parents[2]
WAIT_S = 300.0

Tensors = dict[str, Any]


def a_plan(logdir: Path, **changes: Any) -> CheckpointPlan:
    fields: dict[str, Any] = {
        "save_path": str(logdir / "model.ckpt"),
        "latest_filename": "checkpoint",
        "save_secs": 0.0,
        "max_to_keep": 5,
        "keep_every_n_hours": 10000.0,
        "pad_step_number": False,
        "save_relative_paths": False,
        "meta_path": "",
    }
    return CheckpointPlan(**(fields | changes))


def dtype_name(value: np.ndarray[Any, Any]) -> str:
    return "string" if value.dtype == object else str(value.dtype)


def publish(
    pool: SlotPool,
    plan: CheckpointPlan,
    shards: list[list[tuple[str, str, Any]]] | Tensors,
    sequence: int,
    step: int,
    *,
    named: bool = True,
    sharded: bool = False,
    dtypes: dict[str, str] | None = None,
) -> SlotInfo:
    """Fill a slot with (key, slice, value) triples and make it READY."""
    if isinstance(shards, dict):
        shards = [[(key, "", value) for key, value in shards.items()]]
    writer = pool.begin_snapshot()
    assert writer is not None, "no free slot"
    at, listed = HEADER_BYTES, []
    for shard in shards:
        entries = []
        for key, piece, given in shard:
            value = np.asarray(given)
            dtype = (dtypes or {}).get(key, dtype_name(value))
            if dtype == "string":
                data = pack_strings([bytes(v) for v in value.reshape(-1).tolist()])
            else:
                data = value.tobytes()
            at = align(at)
            writer.make_room(at + len(data) - HEADER_BYTES)
            writer.memory[at : at + len(data)] = data
            entries.append(TensorEntry(key, piece, dtype, value.shape, at, len(data), xxhash.xxh3_64_intdigest(data)))
            at += len(data)
        listed.append(tuple(entries))
    contents = Contents(plan, sharded, tuple(listed), step if named else -1, "test")
    return writer.publish_slot(sequence, step, contents, align(at))


def some_tensors(step: int, size: int = 1000) -> Tensors:
    return {
        "bias": np.arange(size, dtype=np.float32) + step,
        "global_step": np.array(step, np.int64),
        "name": np.array([b"a", b"", b"x" * 300], dtype=object),
    }


@dataclass
class TrainerStandIn:
    """Talks to the service as a trainer or a watchdog does, on the test's own thread."""

    run: Run
    task: TaskId
    incarnation: int
    context: Any = field(default_factory=new_context)
    received: list[Received] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = SystemClock()
        address = Address(self.run.id, self.task, self.incarnation)
        self.client = Client(self.context, self.run.paths.service_socket(CHECKPOINT), address, self.clock)
        self.waiter = Waiter()
        self.waiter.register(self.client)
        self.plan: CheckpointPlan | None = None
        self.pid = os.getpid()

    def tell(self, body: Message) -> int:
        return self.client.send_reliable(body)

    def until(self, seen: Callable[[Received], bool], what: str = "the expected message") -> Received:
        """Wait for a message. Messages that came before it count."""
        deadline_s = self.clock.monotonic() + WAIT_S
        at = 0
        while True:
            for received in self.received[at:]:
                if seen(received):
                    return received
            at = len(self.received)
            assert self.clock.monotonic() < deadline_s, f"{what} did not come; heard {[h.body for h in self.received]}"
            self.turn()

    def turn(self, wait_s: float = 0.1) -> None:
        if self.client.resend_due() and self.task.role != "member":  # a member only asks
            self.client.send_reliable(Hello(self.pid))
            if self.plan is not None:
                self.client.send_reliable(self.plan)
        self.waiter.wait(wait_s)
        while (received := self.client.receive()) is not None:
            self.received.append(received)
            self.client.acknowledge(received)

    def until_body(self, kind: type[Message], seen: Callable[[Any], bool] = lambda _: True) -> Any:
        return self.until(lambda h: isinstance(h.body, kind) and seen(h.body), kind.__name__).body

    def ask(self, body: Message) -> Any:
        seq = self.tell(body)
        return self.until(lambda h: h.re == seq and not isinstance(h.body, Ack), f"an answer to {body}").body

    def ask_ack(self, body: Message) -> None:
        seq = self.tell(body)
        self.until(lambda h: h.re == seq, f"an acknowledgement of {body}")

    def close(self) -> None:
        self.client.close(0)
        self.context.term()


@dataclass
class Run:
    """A logdir, its paths and the services started in it."""

    logdir: Path
    paths: RunPaths
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    services: list[Child] = field(default_factory=list)
    talkers: list[TrainerStandIn] = field(default_factory=list)
    pools: list[SlotPool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lifeline = os.pipe()

    def start(self, **changes: Any) -> Start:
        fields: dict[str, Any] = {
            "task": CHECKPOINT,
            "run": self.id,
            "incarnation": len(self.services) + 1,
            "logdir": str(self.logdir),
            "run_dir": str(self.paths.run_dir),
            "shm_dir": str(self.paths.shm_dir),
            "lifeline_fd": self.lifeline[0],
            "settings": LaunchSettings(grace_s=5.0),
        }
        return Start(**(fields | changes))

    def start_service(self, failpoints: str = "", **changes: Any) -> Child:
        start = self.start(**changes)
        env = start.environment({**os.environ, "PYTHONPATH": str(ROOT), "PROCSV_FAILPOINTS": failpoints})
        fds = (start.lifeline_fd,) if start.lifeline_fd >= 0 else ()
        argv = [sys.executable, *start.argv()[1:]]
        child = spawn(argv, env=env, log=self.paths.log(CHECKPOINT, start.incarnation), pass_fds=fds, cwd=ROOT)
        self.services.append(child)
        return child

    def wait_ended(self, child: Child) -> Any:
        """Wait until a process ends, while all clients go on talking."""
        waiter, clock = Waiter(), SystemClock()
        waiter.register(child.pidfd)
        deadline_s = clock.monotonic() + WAIT_S
        while not waiter.wait(0.05):
            assert clock.monotonic() < deadline_s, "the process does not end"
            for talker in self.talkers:
                talker.turn(0.0)
        return child.reap()

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait until `is_so`, while all clients go on talking."""
        clock = SystemClock()
        deadline_s = clock.monotonic() + WAIT_S
        while not is_so():
            assert clock.monotonic() < deadline_s, f"{what} does not come"
            for talker in self.talkers:
                talker.turn(0.02)

    def trainer(
        self, incarnation: int = 1, task: TaskId = TRAINER, plan: CheckpointPlan | None = None
    ) -> TrainerStandIn:
        talker = TrainerStandIn(self, task, incarnation)
        talker.plan = plan
        self.talkers.append(talker)
        return talker

    def watchdog(self) -> TrainerStandIn:
        return self.trainer(1, WATCHDOG)

    def pool(self, incarnation: int = 1, size: int = 100_000) -> SlotPool:
        pool = SlotPool(self.paths.shm_dir, self.id, TRAINER, incarnation)
        pool.reserve(size)
        self.pools.append(pool)
        return pool

    def log(self) -> str:
        return "".join(p.read_text() for p in sorted(self.paths.logs.glob("*.log")))

    def cut_lifeline(self) -> None:
        if self.lifeline[1] >= 0:
            os.close(self.lifeline[1])
            self.lifeline = (self.lifeline[0], -1)

    def close(self) -> None:
        for pool in self.pools:
            pool.close()
        for talker in self.talkers:
            talker.close()
        for child in self.services:
            if not child.has_ended():
                child.signal(9)
            waiter = Waiter()
            waiter.register(child.pidfd) if child.exit is None else None
            assert child.exit is not None or waiter.wait(WAIT_S)
            child.reap()
        self.cut_lifeline()
        os.close(self.lifeline[0])
        for directory in (self.paths.shm_dir, self.paths.run_dir):
            shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    logdir = tmp_path / "logdir"
    logdir.mkdir()
    name = f"procsv-test-{secrets.token_hex(6)}"
    paths = RunPaths(logdir, Path(tempfile.gettempdir()) / name, Path("/dev/shm") / name)
    for path in (paths.run_dir, paths.shm_dir):
        make_private_dir(path)
    a_run = Run(logdir, paths)
    yield a_run
    a_run.close()


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., CheckpointPlan]:
    return lambda **changes: a_plan(tmp_path / "logdir", **changes)


@pytest.fixture(name="publish")
def publish_fixture() -> Callable[..., SlotInfo]:
    return publish


@pytest.fixture
def store(run: Run) -> Store:
    """Return the disk side of a service, in this process."""
    return local_store(run.start())


@pytest.fixture
def directory(run: Any) -> Iterator[Path]:
    """Return a directory in memory, for tests that commit thousands of times."""
    top: Path = run.paths.shm_dir / "logdir"
    top.mkdir()
    yield top
    shutil.rmtree(top)
