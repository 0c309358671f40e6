"""Ten thousand random damages to procsv's files cause no traceback and no wrong value.

Each reader gets a file with one byte changed, or a piece cut out, cut off, doubled or overwritten.
It must return what it read or raise the error that its callers expect. If the file has a checksum,
the result must be what was written.
"""

from __future__ import annotations

import io
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from procsv.base.clock import Clock
from procsv.base.encoding import encode_json
from procsv.base.errors import PeerError, UserError
from procsv.base.identity import TRAINER, WATCHDOG
from procsv.base.journal.file import Journal, read_journal
from procsv.base.outcome import LastExit
from procsv.base.run.adoption import pointer_of, root_of, write_pointer
from procsv.base.run.lease import Lease, LeaseFile, ProcessSpace
from procsv.base.run.loaded import read_loaded, take_earlier
from procsv.base.run.manifest import FileSum, Manifest
from procsv.base.run.paths import SHM_ROOT, RunPaths
from procsv.base.run.run_file import RunFile, find_run_in, read_run, write_run
from procsv.base.run.saved_step import saved_step
from procsv.base.system.locks import FileLock
from procsv.base.system.system_clock import SystemClock
from procsv.cli import status
from procsv.faults.plan import count_done
from procsv.faults.plan_parser import parse_plan
from procsv.ipc.shm.heartbeat import Phase, Snapshots, Spacing
from procsv.ipc.shm.heartbeat_file import HeartbeatReader, HeartbeatWriter
from procsv.ipc.shm.slot_file import SlotPool
from procsv.ipc.shm.slot_header import scan_slots
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.report import page, text
from procsv.report.reading import read_story
from procsv.report.report_object import make_object
from procsv.services.checkpoint.format.manifest import BadCheckpoint, encode_manifest, read_manifest
from procsv.services.checkpoint.format.state_file import GarbledStateFile, read_state, write_state
from procsv.services.checkpoint.store.intent import Intent, read_intent, write_intent
from procsv.services.checkpoint.store.service_state import StoredState
from procsv.services.summary.stream_file import Stream, StreamStore
from procsv.training.process.import_record import ImportRecord
from tests.ipc.shm.snapshots import RUN, publish
from tests.support.journal import append

DAMAGES = 10_000
BYTES = (b"\xff", b"\x00", b"\xc3(", b'"', b"9" * 400, b"[" * 5000, b"{}", b"null", b"-1", b"1e999", b"\xed\xa0\x80")


def damage(data: bytes, rng: random.Random) -> bytes:
    """Return `data` with one thing wrong."""
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.randrange(1, 40))
    match rng.randrange(6):
        case 0:
            return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        case 1:
            return data[:at] + data[end:]
        case 2:
            return data[:at]
        case 3:
            return data[:end] + data[at:]
        case 4:
            return data[:at] + rng.choice(BYTES) + data[end:]
        case _:
            return data[:at] + rng.choice(BYTES) + data[at:]


@dataclass
class Readers:
    """A run's files and their readers: each returns its answer, or None if the file is not to be trusted."""

    paths: RunPaths
    clock: Clock

    @property
    def adopted(self) -> Path:
        """Return another run's logdir, whose own directory is elsewhere."""
        return self.paths.logdir.parent / "adopted"

    def write_all(self) -> dict[Path, Callable[[], Any]]:
        paths = self.paths
        for directory in (paths.logs, paths.run_dir, paths.shm_dir, paths.staging / "2"):
            directory.mkdir(parents=True, exist_ok=True)
        return {
            paths.run_json: self.run_file(),
            paths.journal: self.journal(),
            paths.run_lock: self.lock(),
            paths.lease: self.lease(),
            paths.logdir / "model.ckpt-7.manifest.json": self.manifest(),
            paths.staging / "2" / "intent.json": self.intent(),
            pointer_of(self.adopted): self.pointer(),
            paths.home / "checkpoints.json": self.stored_state(),
            paths.logdir / "checkpoint": self.state_file(),
            paths.loaded: self.loaded(),
            paths.imports: self.imports(),
            paths.heartbeat(TRAINER, 1): self.heartbeat(),
            paths.shm_dir / "slot.1.0": self.slot(),
            paths.event_position("1-x"): self.position(),
        }

    def run_file(self) -> Callable[[], Any]:
        last = LastExit(code=1, signal=None, cause="exception", evidence="ValueError", step=3)
        run = RunFile(
            run=RUN, target="t.py", args=("--a", "é"), logdir=str(self.paths.logdir), run_dir=str(self.paths.run_dir),
            shm_dir=str(self.paths.shm_dir), pid=4_000_000, started=12.5, boot="b", state="running", incarnation=3,
            step=840, durable_step=800, started_at=1e9, last_exit=last,
        )  # fmt: skip
        write_run(self.paths.run_json, run, durable=False)

        def read() -> RunFile | None:
            found = find_run_in(self.paths)
            if found is not None:
                assert found.is_active in (True, False)
                status.show_status(status.read_status(found))
            return read_run(self.paths.run_json)

        return read

    def pointer(self) -> Callable[[], Any]:
        root = self.adopted.parent / "runs"
        home = root / "procsv"
        for directory in (home, pointer_of(self.adopted).parent):
            directory.mkdir(parents=True)
        run = read_run(self.paths.run_json)
        assert run is not None, "what `run_file` has written"
        adopting = msgspec.structs.replace(run, logdir=str(self.adopted), root=str(root))
        write_run(home / "run.json", adopting, durable=False)
        write_pointer(self.adopted, root)
        return lambda: root_of(self.adopted)

    def journal(self) -> Callable[[], Any]:
        book = Journal(self.paths.journal, self.clock)
        append(book, "run_started", WATCHDOG, 1, pid=1, target="t.py", args=["é"], seen_until=None, asked_at=1e9)
        for number in (1, 2):
            append(book, "spawned", TRAINER, number, pid=number)
            append(book, "ready", TRAINER, number, step=1)
            append(book, "recovered", TRAINER, number, step=0, source="memory", seconds=0.5, **{"from": "/s"})
            append(book, "frozen", TRAINER, number, step=5, seconds=0.1)
            append(book, "session_lost", TRAINER, number, step=6, error="E")
            append(book, "session_recovered", TRAINER, number, step=5, at=6, lost_steps=1, source="memory", seconds=0.1)
            append(book, "hang_detected", TRAINER, number, step=7, seconds=2.0, phase="step")
            append(
                book, "checkpoint_durable", TRAINER, 1, step=7, path="/l/m-7", reason="periodic", bytes=7, seconds=0.1
            )
            append(book, "fault", TRAINER, number, fault="kill trainer at step 50", step=7)
            append(book, "exited", TRAINER, number, step=9, code=1, signal=None, cause="exception", evidence="E")
            append(book, "restarting", TRAINER, number, delay=0.1, lost_steps=2)
        append(book, "gave_up", TRAINER, 2, why="no progress")
        book.close()
        plan = parse_plan('[[fault]]\ndo = "kill trainer at step 50"\n', "plan.toml")
        drawn = set[str]()  # results seen before: most damages remove a line, whatever they turn it into

        def read() -> None:
            damaged: list[bytes] = []
            events = list(read_journal(self.paths.journal, damaged))
            count_done(plan, events)
            try:
                story = read_story(self.paths.logdir, self.clock)
            except UserError:  # no line is left: this is no run's logdir
                return
            encode_json(make_object(story))
            if (told := repr((events, len(damaged)))) in drawn:
                return
            drawn.add(told)
            text.show_report(story, Console(file=io.StringIO(), width=100))
            page.make_page(story)

        return read

    def lock(self) -> Callable[[], Any]:
        lock = FileLock(self.paths.run_lock)
        assert lock.try_acquire("procsv launch é", 1e9)
        lock.release_lock()

        def read() -> None:
            there = FileLock(self.paths.run_lock)
            there.wake()
            there.is_held()

        return read

    def lease(self) -> Callable[[], Any]:
        place = ProcessSpace("host", "boot", "pid:[1]")
        lease = Lease(run=RUN, place=place, pid=1, started=12.5, what="procsv launch é", since=1e9, renewed=1e9)
        LeaseFile(self.paths).take_lease(lease)
        return lambda: LeaseFile(self.paths).holder()

    def manifest(self) -> Callable[[], Any]:
        path = self.paths.logdir / "model.ckpt-7.manifest.json"
        files = {"model.ckpt-7.index": FileSum(10, "ab" * 16)}
        path.write_bytes(encode_manifest(Manifest(1, 7, 2, 1, RUN, "periodic", 1e9, files)))

        def read() -> Any:
            saved_step(self.paths.logdir)
            with suppress(BadCheckpoint):
                return read_manifest(path)

        return read

    def intent(self) -> Callable[[], Any]:
        staging, logdir = self.paths.staging / "2", str(self.paths.logdir)
        manifest = Manifest(1, 7, 2, 1, RUN, "periodic", 1e9, {"model.ckpt-7.index": FileSum(10, "ab" * 16)})
        path = f"{logdir}/model.ckpt-7"
        write_intent(
            staging,
            Intent(path, manifest, f"{logdir}/checkpoint", path, False, (path,), (f"{logdir}/m-1",), None, False),
        )
        return lambda: read_intent(staging)

    def stored_state(self) -> Callable[[], Any]:
        state = StoredState(self.paths.home)
        state.note_runs([RUN, "é"])
        state.note_next_keep("model.ckpt", 1e9)
        whole = (state.runs(), state.next_keep("model.ckpt", -1.0))

        def read() -> Any:
            found = (state.runs(), state.next_keep("model.ckpt", -1.0))
            return None if found == (set(), -1.0) else found

        assert read() == whole
        return read

    def state_file(self) -> Callable[[], Any]:
        path = self.paths.logdir / "checkpoint"
        prefix = str(self.paths.logdir / "model.ckpt")
        write_state(path, prefix, [f"{prefix}-6", f"{prefix}-7"], relative=False)

        def read() -> None:
            with suppress(GarbledStateFile):
                read_state(path)
            saved_step(self.paths.logdir)

        return read

    def loaded(self) -> Callable[[], Any]:
        ImportRecord(self.paths, {"A": "é", "B": None}, "train").keep_written(0.0)

        def read() -> None:
            with suppress(OSError, msgspec.DecodeError):
                read_loaded(self.paths.loaded)

        return read

    def imports(self) -> Callable[[], Any]:
        ImportRecord(self.paths, {"A": "é", "B": None}, "train", ("python", "train"))
        return lambda: take_earlier(self.paths, ("python", "train"))

    def heartbeat(self) -> Callable[[], Any]:
        path = self.paths.heartbeat(TRAINER, 1)
        writer = HeartbeatWriter(path)
        writer.phase, writer.step, writer.snapshots = Phase.STEP, 7, Snapshots(Spacing.TOLD, 1.0, 3, 0.1, 0.1, 0.1)
        writer.beat(100.0)
        writer.close()

        def read() -> None:
            reader = HeartbeatReader(path)
            beat = reader.read_heartbeat()
            if beat is not None:
                beat.snapshots.as_status()
            reader.close()

        return read

    def slot(self) -> Callable[[], Any]:
        pool = SlotPool(self.paths.shm_dir, RUN, TRAINER, 1)
        pool.reserve(200, count=1)
        writer = pool.begin_snapshot()
        assert writer is not None
        publish(writer, 1, {"x": b"weights" * 4})
        pool.close()

        def read() -> Any:
            for info in scan_slots(self.paths.shm_dir):
                with suppress(PeerError):
                    reader = SlotReader(info)
                    try:
                        reader.verify_slot()
                        entry = reader.contents.shards[0][0]
                        return info.step, info.sequence, bytes(reader.map[entry.offset : entry.offset + entry.size])
                    finally:
                        reader.close()
            return None

        return read

    def position(self) -> Callable[[], Any]:
        stream = Stream(self.paths, RUN, "1-x", self.paths.logdir, "")
        stream.append_records([b"one", b"two"], 1e9)

        def read() -> Any:
            store = StreamStore(self.paths, RUN)
            found = store.repair()
            store.close()
            return found or None

        return read


CHECKED = {
    "run.json",
    "pointer.json",
    "model.ckpt-7.manifest.json",
    "intent.json",
    "checkpoints.json",
    "slot.1.0",
    "events.1-x.pos",
}


@pytest.fixture
def memory() -> Iterator[Path]:
    """Return a directory where a file that is rewritten again and again does not wait for a disk."""
    with tempfile.TemporaryDirectory(dir=SHM_ROOT, prefix="procsv-test-") as directory:
        yield Path(directory)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")  # protobuf warns and goes on
def test_row_39_no_damaged_file_causes_a_traceback_or_a_wrong_value(
    memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = RunPaths(memory / "logdir", memory / "run", memory / "shm")
    readers = Readers(paths, SystemClock()).write_all()
    whole = {path: (path.read_bytes(), read()) for path, read in readers.items()}
    rng = random.Random(13)
    for number in range(DAMAGES):
        path = list(readers)[number % len(readers)]
        data, value = whole[path]
        damaged = damage(data, rng)
        path.write_bytes(damaged)
        try:
            read = readers[path]()
        except Exception as error:
            raise AssertionError(f"{path.name}, damage {number}: {damaged[:300]!r}") from error
        finally:
            path.write_bytes(data)
        assert path.name not in CHECKED or read in (None, value), f"{path.name}, damage {number}: {damaged!r}"
        capsys.readouterr()
