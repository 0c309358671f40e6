"""After a kill during slot work, whole slots stay, torn slots are never used and locks are released."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from procsv.base.identity import TRAINER
from procsv.ipc.shm.slot_file import SlotPool
from procsv.ipc.shm.slot_header import scan_slots
from procsv.ipc.shm.slot_reader import remove_slot
from procsv.ipc.shm.slot_state import SlotInfo, SlotState
from tests.ipc.shm.snapshots import RUN, publish, read
from tests.support.programs import running

pytestmark = pytest.mark.fault

FILLS_SLOTS = """
    import sys
    from pathlib import Path
    from procsv.base.identity import TRAINER
    from procsv.ipc.shm.slot_file import SlotPool
    from procsv.base.system.failpoints import failpoint
    from tests.ipc.shm.snapshots import RUN, fill
    shm, incarnation, first, last = Path(sys.argv[1]), *map(int, sys.argv[2:])
    pool = SlotPool(shm, RUN, TRAINER, incarnation)
    pool.reserve(200_000)
    for sequence in range(first, last):
        writer = pool.begin_snapshot()
        if writer is None:
            print("none")
            continue
        tensors = {"a": bytes([sequence % 251]) * 100_000, "b": str(sequence).encode()}
        contents, end = fill(writer, tensors)
        failpoint("trainer.copy")
        info = writer.publish_slot(sequence, sequence * 10, contents, end)
        print("published", info.sequence)
    print("done")
    sys.stdin.readline()
"""

READER = """
    import sys
    from pathlib import Path
    from procsv.ipc.shm.slot_header import scan_slots
    from procsv.ipc.shm.slot_reader import SlotReader
    reader = SlotReader(next(info for info in scan_slots(Path(sys.argv[1])) if info.sequence == int(sys.argv[2])))
    print("holding", reader.info.path)
    sys.stdin.readline()
    reader.verify_slot()
    reader.close()
    print("verified")
    sys.stdin.readline()
"""


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    path = tmp_path / "shm"
    path.mkdir()
    return path


def expected(sequence: int) -> dict[str, bytes]:
    return {"a": bytes([sequence % 251]) * 100_000, "b": str(sequence).encode()}


def states(shm: Path) -> list[int]:
    """Return the states in the files, whether their headers are whole or not."""
    return [struct.unpack_from("=I", path.read_bytes(), 16)[0] for path in sorted(shm.glob("slot.*"))]


def snapshot(pool: SlotPool, sequence: int) -> SlotInfo:
    writer = pool.begin_snapshot()
    assert writer is not None
    return publish(writer, sequence, expected(sequence))


@pytest.mark.parametrize("where", ["trainer.copy", "trainer.before_publish"])
def test_a_slot_whose_trainer_was_killed_while_writing_is_torn_and_the_previous_one_counts(
    shm: Path, where: str
) -> None:
    with running(FILLS_SLOTS, shm, 1, 1, 9, failpoints=f"{where}=3*off->kill") as trainer:
        assert trainer.wait() == -9
        assert sorted(states(shm)) == [SlotState.WRITING, SlotState.READY]
        newest, *others = scan_slots(shm)
        assert (newest.sequence, newest.step, others) == (3, 30, [])
        assert read(newest) == expected(3)

    torn = next(path for path in shm.glob("slot.*") if path != newest.path)
    second = SlotPool(shm, RUN, TRAINER, 2)
    second.reserve(200_000)
    assert torn in second.paths, "the dead trainer's lock is gone, and the torn slot is used again"
    assert newest.path not in second.paths
    second.close()


def test_a_snapshot_counts_from_the_moment_it_is_published(shm: Path) -> None:
    with running(FILLS_SLOTS, shm, 1, 1, 9, failpoints="trainer.after_publish=2*off->kill") as trainer:
        assert trainer.wait() == -9
    assert [info.sequence for info in scan_slots(shm)] == [3, 2]
    assert read(scan_slots(shm)[0]) == expected(3)


@pytest.mark.parametrize("after", [1, 20, 41, 97])
def test_the_newest_snapshot_is_whole_wherever_the_trainer_is_killed(shm: Path, after: int) -> None:
    with running(FILLS_SLOTS, shm, 1, 1, 10**6) as trainer:
        trainer.wait_said("published", after)
        trainer.kill()
        newest = scan_slots(shm)[0]
        assert newest.sequence >= after
        assert read(newest) == expected(newest.sequence)


def test_a_slot_that_another_process_reads_is_not_written_to_until_that_process_is_dead(shm: Path) -> None:
    pool = SlotPool(shm, RUN, TRAINER, 1)
    pool.reserve(200_000)
    older = snapshot(pool, 1)
    with running(READER, shm, 1) as service:
        assert service.wait_said("holding") == str(older.path)
        newest = snapshot(pool, 2)
        assert pool.begin_snapshot() is None
        assert not remove_slot(older.path)
        assert read(newest) == expected(2)

        service.kill()
        writer = pool.begin_snapshot()
        assert writer is not None
        assert writer.path == older.path
    pool.close()


def test_a_snapshot_being_read_outlives_its_trainer(shm: Path) -> None:
    with running(FILLS_SLOTS, shm, 1, 1, 3) as trainer:
        trainer.wait_said("done")
        with running(READER, shm, 2) as service:
            service.wait_said("holding")
            trainer.kill()
            second = SlotPool(shm, RUN, TRAINER, 2)
            second.reserve(200_000)
            for sequence in range(3, 8):
                snapshot(second, sequence)
            service.tell()
            service.wait_said("verified")
            second.close()


def test_no_process_removes_a_slot_while_a_trainer_writes_to_it(shm: Path) -> None:
    source = """
        import sys
        from pathlib import Path
        from procsv.base.identity import TRAINER
        from procsv.ipc.shm.slot_file import SlotPool
        from tests.ipc.shm.snapshots import RUN, publish
        pool = SlotPool(Path(sys.argv[1]), RUN, TRAINER, 1)
        pool.reserve(1000, count=1)
        writer = pool.begin_snapshot()
        print("writing", writer.path)
        sys.stdin.readline()
        publish(writer, 1, {"w": b"x"})
        print("published")
        sys.stdin.readline()
    """
    with running(source, shm) as trainer:
        path = Path(trainer.wait_said("writing"))
        assert not remove_slot(path)
        assert path.exists()
        trainer.tell()
        trainer.wait_said("published")
        (info,) = scan_slots(shm)
        assert read(info) == {"w": b"x"}
        assert remove_slot(path, info)
