"""Run a checkpoint service and its trainers in one process, in memory and in a fixed order.

The property test kills them in every way it can draw. Slots and the store are real; time and
messages are in memory. The service does its disk work through the real `CheckpointEnvironment`, but
runs the jobs of its threads one after the other. A kill hits the service between two disk calls or
between two messages, and hits the trainer between two snapshots or in the middle of one. The world
remembers every state that was captured.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from procsv.base.identity import CHECKPOINT, TRAINER, WATCHDOG
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan, Durable, Restore, Restored, RestoreFrom, Snapshot
from procsv.ipc.messaging.endpoint import Address, Received
from procsv.ipc.messaging.messages import Hello
from procsv.ipc.messaging.watchdog_messages import Finish, FlushDone, TrainerExited
from procsv.ipc.shm.heartbeat_file import HeartbeatWriter
from procsv.ipc.shm.slot_file import SlotPool
from procsv.ipc.shm.slot_header import HEADER_BYTES, scan_slots
from procsv.ipc.shm.slot_index import Contents, TensorEntry, align, pack_strings, unpack_strings
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.services.checkpoint.environment import CheckpointEnvironment
from procsv.services.checkpoint.format.bundle_index import parse_slice, slice_key
from procsv.services.checkpoint.format.bundle_reader import count_elements, read_index
from procsv.services.checkpoint.format.manifest import read_manifest
from procsv.services.checkpoint.format.names import manifest_of
from procsv.services.checkpoint.process import CheckpointService
from procsv.services.runtime import Tools
from tests.support.fake_clock import FakeClock
from tests.support.memory_transport import FakeClient, FakeNetwork, FakeServer
from tests.support.power_loss import Killed, Recording

TURN_S = 0.1
TURNS_MAX = 3000  # five minutes on the world's clock

Piece = tuple[str, str, Any]  # key, slice as SaveV2 takes it, value
Shards = list[list[Piece]]


@dataclass(frozen=True)
class Captured:
    """A trainer's variables, as the bytes of a checkpoint, by their key in the checkpoint."""

    step: int
    tensors: dict[bytes, bytes | list[bytes]]
    shards: Shards


class _InTurn:
    """A worker that runs its jobs when the world calls `work`."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], None]] = deque()

    def run_job(self, job: Callable[[], Any], then: Callable[[Any], None], failed: Callable[[Exception], None]) -> None:
        def run() -> None:
            try:
                result = job()
            except Exception as error:  # noqa: BLE001  as the real one
                failed(error.with_traceback(None))
            else:
                then(result)

        self._jobs.append(run)

    @property
    def is_busy(self) -> bool:
        return bool(self._jobs)

    def work(self) -> None:
        if self._jobs:
            self._jobs.popleft()()

    def close(self) -> None:
        assert not self._jobs, "closed with jobs undone"


class _Machine(CheckpointEnvironment):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.workers: list[_InTurn] = []

    def worker(self, *_: Any) -> Any:
        self.workers.append(_InTurn())
        return self.workers[-1]


@dataclass
class World:
    """A run whose time passes only in `turn`."""

    run: Any
    plan: CheckpointPlan
    seed: int
    clock: FakeClock = field(default_factory=FakeClock)
    captured: dict[int, Captured] = field(default_factory=dict)  # by sequence
    newest: int = 0  # the sequence of the newest whole snapshot
    acknowledged: int = 0  # the highest sequence that was reported durable
    service: CheckpointService | None = None
    services: int = 0
    incarnation: int = 0
    sequence: int = 0
    step: int = 0
    pool: SlotPool | None = None
    received: list[Received] = field(default_factory=list)  # by the trainer that is alive

    def __post_init__(self) -> None:
        self.network = FakeNetwork(self.clock, self.seed)
        self.path = self.run.paths.service_socket(CHECKPOINT)
        self.recording = Recording(self.logdir)
        self.recording.__enter__()
        self.watchdog = FakeClient(self.network, self.path, Address(self.run.id, WATCHDOG, 1), self.clock)
        self.watchdog_heard: list[Received] = []
        self.trainer: FakeClient | None = None
        self.server: FakeServer | None = None
        self.start_service()

    @property
    def logdir(self) -> Path:
        return Path(self.plan.save_path).parent

    def close(self) -> None:
        self.recording.__exit__()
        self.kill_service()
        if self.pool is not None:
            self.pool.close()
        for slot in self.run.paths.shm_dir.glob("slot.*"):
            slot.unlink()
        shutil.rmtree(self.logdir)
        self.logdir.mkdir()

    # -- starts and kills -----------------------------------------------------------------------------
    def start_service(self) -> None:
        self.services += 1
        start = self.run.start(incarnation=self.services, lifeline_fd=-1, logdir=str(self.logdir))
        self.server = FakeServer(self.network, self.path, Address(self.run.id, CHECKPOINT, self.services), self.clock)
        self.heartbeat = HeartbeatWriter(self.run.paths.heartbeat(CHECKPOINT, self.services))
        self.machine = _Machine(start, self.clock)
        tools = Tools(start, self.clock, self.server, self.heartbeat, lambda: None)
        try:
            self.service = CheckpointService(tools, self.machine)
        except Killed:
            self.kill_service()

    def kill_service(self) -> None:
        if self.server is not None:
            self.server.close()
            self.heartbeat.close()
        self.service = self.server = None
        self.recording.is_dead, self.recording.kill_at = False, -1

    def kill_service_at(self, calls: int) -> None:
        """Kill the service within that many disk calls."""
        self.recording.kill_at = self.recording.calls + calls

    def kill_trainer(self) -> None:
        assert self.trainer is not None
        self.trainer.close()
        self.trainer = None
        if self.pool is not None:
            self.pool.close()
            self.pool = None
        self.watchdog.send_reliable(TrainerExited(self.incarnation, False))

    def start_trainer(self, durable_only: bool) -> RestoreFrom:
        """Start a new trainer and return the state that it must restore."""
        self.incarnation += 1
        self.received = []
        self.trainer = FakeClient(self.network, self.path, Address(self.run.id, TRAINER, self.incarnation), self.clock)
        seq = self.trainer.send_reliable(Restore(durable_only))
        answer = self.until(lambda h: h.re == seq and isinstance(h.body, RestoreFrom)).body
        assert isinstance(answer, RestoreFrom)
        self.sequence, self.step = answer.sequence, max(answer.step, 0)
        return answer

    def begin_training(self, answer: RestoreFrom, size: int) -> None:
        assert self.trainer is not None
        self.trainer.send_reliable(Restored())
        self.pool = SlotPool(self.run.paths.shm_dir, self.run.id, TRAINER, self.incarnation)
        self.pool.reserve(size, never=frozenset({answer.path}))

    # -- time ---------------------------------------------------------------------------------------------------
    def turn(self) -> None:
        self.clock.advance(TURN_S)
        if self.service is None:
            self.start_service()
        try:
            self._serve()
        except Killed:
            self.kill_service()
        for client, received in ((self.trainer, self.received), (self.watchdog, self.watchdog_heard)):
            if client is not None:
                self._talk(client, received)

    def _serve(self) -> None:
        if self.service is None or self.server is None:
            return
        self.service.tick(self.clock.monotonic())
        while (received := self.server.receive()) is not None:
            self.service.handle_message(received)
        self.server.resend_due()
        for worker in self.machine.workers:
            worker.work()

    def _talk(self, client: FakeClient, received: list[Received]) -> None:
        if client.resend_due():
            client.send_reliable(Hello(1))
            if client is self.trainer:
                client.send_reliable(self.plan)
        while (news := client.receive()) is not None:
            received.append(news)
            client.acknowledge(news)
            if isinstance(news.body, Durable):
                self.acknowledged = max(self.acknowledged, news.body.sequence)

    def until(self, seen: Callable[[Received], bool], received: list[Received] | None = None) -> Received:
        among = self.received if received is None else received
        for _ in range(TURNS_MAX):
            for news in among:
                if seen(news):
                    return news
            self.turn()
        raise AssertionError(f"it does not come; heard {[h.body for h in among]}")

    # -- trainer --------------------------------------------------------------------------------------------------
    def capture(self, shards: Shards, sharded: bool, want: str, torn: bool = False) -> int:
        """Fill a slot and announce it. Return the message number, or 0 if no slot was free."""
        assert self.pool is not None
        assert self.trainer is not None
        writer = self.pool.begin_snapshot()
        if writer is None:
            return 0
        at, listed = HEADER_BYTES, []
        tensors: dict[bytes, bytes | list[bytes]] = {}
        for shard in shards:
            entries = []
            for key, piece, value in shard:
                is_text = value.dtype == object
                strings = [bytes(v) for v in value.reshape(-1).tolist()] if is_text else []
                data = pack_strings(strings) if is_text else value.tobytes()
                at = align(at)
                writer.make_room(at + len(data) - HEADER_BYTES)
                writer.memory[at : at + len(data)] = data
                dtype = "string" if is_text else str(value.dtype)
                entries.append(
                    TensorEntry(key, piece, dtype, value.shape, at, len(data), xxhash.xxh3_64_intdigest(data))
                )
                at += len(data)
                tensors[key_in_checkpoint(key, piece)] = strings if is_text else data
            listed.append(tuple(entries))
        if torn:
            return 0
        self.step, self.sequence = self.step + 1, self.sequence + 1
        self.captured[self.sequence] = Captured(self.step, tensors, shards)
        contents = Contents(self.plan, sharded, tuple(listed), self.step, "test")
        writer.publish_slot(self.sequence, self.step, contents, align(at))
        self.newest = self.sequence
        return self.trainer.send_reliable(Snapshot(self.sequence, self.step, want))  # type: ignore[arg-type]

    # -- checks --------------------------------------------------------------------------------------
    def check_restored(self, answer: RestoreFrom) -> None:
        """Check that the answer is the newest whole snapshot, bit for bit."""
        if answer.source == "fresh":
            assert (self.newest, answer.error) == (0, "")
            return
        if answer.source == "memory":
            (info,) = [i for i in scan_slots(self.run.paths.shm_dir) if str(i.path) == answer.path]
            sequence, tensors = info.sequence, read_slot(SlotReader(info))
        else:
            sequence, tensors = sequence_of(answer.path), read_checkpoint(answer.path)
        assert sequence == self.newest >= self.acknowledged
        assert answer.sequence >= sequence
        assert answer.step == self.captured[sequence].step
        assert tensors == self.captured[sequence].tensors

    def check_checkpoint(self, path: str) -> Captured:
        captured = self.captured[sequence_of(path)]
        assert path == f"{self.plan.save_path}-{captured.step}"
        assert read_checkpoint(path) == captured.tensors
        return captured

    def finish(self) -> None:
        """End the run: the last snapshot becomes a checkpoint and the service exits."""
        self.network.loss = self.network.duplication = self.network.delay_s_max = 0.0
        seq = self.watchdog.send_reliable(Finish())
        answer = self.until(lambda h: h.re == seq and isinstance(h.body, FlushDone), self.watchdog_heard).body
        assert isinstance(answer, FlushDone)
        assert answer.error == ""
        for _ in range(TURNS_MAX):
            if self.service is not None and self.service.is_finished():
                break
            self.turn()
        assert self.service is not None
        self.service.close()


def key_in_checkpoint(key: str, piece: str) -> bytes:
    parsed = parse_slice(piece) if piece else None
    return key.encode() if parsed is None or parsed.is_full else slice_key(key.encode(), parsed)


def sequence_of(path: str) -> int:
    manifest = read_manifest(manifest_of(path))
    assert manifest is not None
    return manifest.sequence


def read_slot(reader: SlotReader) -> dict[bytes, bytes | list[bytes]]:
    reader.verify_slot()
    found: dict[bytes, bytes | list[bytes]] = {}
    for shard in reader.contents.shards:
        for entry in shard:
            data = bytes(reader.map[entry.offset : entry.offset + entry.size])
            found[key_in_checkpoint(entry.key, entry.slice)] = unpack_strings(data) if entry.dtype == "string" else data
    reader.close()
    return found


def read_checkpoint(path: str) -> dict[bytes, bytes | list[bytes]]:
    """Read the bytes of every tensor and slice."""
    bundle = read_index(path)
    found: dict[bytes, bytes | list[bytes]] = {}
    for key, entry in bundle.entries.items():
        if not entry.slices:
            data = bundle.data_file(entry.shard_id).read_bytes()[entry.offset : entry.offset + entry.size]
            found[key] = _strings(data, count_elements(entry)) if entry.dtype == 7 else data
    return found


def _strings(data: bytes, count: int) -> list[bytes]:
    sizes, at = [], 0
    for _ in range(count):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        sizes.append(size)
    at += 4  # the checksum of the lengths
    found = []
    for size in sizes:
        found.append(data[at : at + size])
        at += size
    return found


def any_array(dtype: Any, shape: tuple[int, ...], chance: np.random.Generator) -> Any:
    """Fill an array with random bits, so that NaNs are among the numbers."""
    count = int(np.prod(shape))
    if dtype is object:
        values = np.empty(count, dtype=object)
        values[:] = [chance.bytes(int(chance.integers(0, 300))) for _ in range(count)]
        return values.reshape(shape)
    if dtype is np.bool_:
        return chance.integers(0, 2, shape).astype(np.bool_)
    return np.frombuffer(chance.bytes(count * np.dtype(dtype).itemsize), dtype).reshape(shape)
