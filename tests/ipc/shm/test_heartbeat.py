"""A heartbeat can be read at any time from any process, whole or not at all."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from procsv.base.outcome import FitPlace, Loss
from procsv.ipc.shm.heartbeat import Heartbeat, Phase, Snapshots, Spacing
from procsv.ipc.shm.heartbeat_file import HeartbeatReader, HeartbeatWriter
from tests.support.naming import Naming
from tests.support.programs import running, until

GUARD_AT = 8


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trainer.1.heartbeat"


def beating(path: Path, step: int = 7) -> HeartbeatWriter:
    writer = HeartbeatWriter(path)
    writer.phase, writer.step = Phase.STEP, step
    writer.beat(1.0)
    return writer


def set_guard(path: Path, guard: int) -> None:
    with path.open("r+b") as file:
        file.seek(GUARD_AT)
        file.write(struct.pack("=Q", guard))


def test_a_reader_that_comes_first_sees_nothing_and_then_the_first_beat(path: Path) -> None:
    reader = HeartbeatReader(path)
    assert reader.read_heartbeat() is None
    path.touch()
    assert reader.read_heartbeat() is None, "a file that is not whole yet"
    path.unlink()
    writer = HeartbeatWriter(path)
    assert reader.read_heartbeat() is None, "no beat yet"
    writer.beat(2.5)
    assert reader.read_heartbeat() == Heartbeat(Phase.IMPORT, -1, 0, 2.5, 0.0)
    reader.close()
    writer.close()


def test_the_beat_shows_how_snapshots_are_spaced_and_why_in_words(path: Path) -> None:
    writer, reader = HeartbeatWriter(path), HeartbeatReader(path)
    for spacing in Spacing:
        writer.snapshots = Snapshots(spacing, 2.5, 12, 0.0011, 0.001, 0.02, 2.0)
        writer.beat(1.0)
        beat = reader.read_heartbeat()
        assert beat is not None
        assert beat.snapshots == writer.snapshots
        assert beat.snapshots.why
    status = msgspec.to_builtins(Snapshots(Spacing.AUTO_COST, 2.5, 12, 0.0011, 0.001, 0.02, 2.0).as_status())
    assert status.pop("why") == Naming(" 1 %; ", " 20.0 ms, 1.00% ")
    assert status == {
        "spacing": "auto",
        "interval": 2.5,
        "apart": 2.0,
        "taken": 12,
        "stall_ms": 1.1,
        "mean_stall_ms": 1.0,
        "mean_cost_ms": 20.0,
        "share": 0.01,
    }
    reader.close()
    writer.close()


def test_the_beat_shows_the_progress_of_a_fit(path: Path) -> None:
    writer, reader = beating(path), HeartbeatReader(path)
    writer.fit = FitPlace(2, 3, 50, 7, 0)
    writer.beat(1.0)
    beat = reader.read_heartbeat()
    assert beat is not None
    assert str(beat.fit) == "fit 2, epoch 3 of 50, batch 7"
    assert beat.loss is None
    writer.loss, writer.importing = Loss("loss", 107, 0.25), "a_package_with_a_long_name_and_more"
    writer.beat(2.0)
    beat = reader.read_heartbeat()
    assert beat is not None
    assert (beat.loss, beat.importing) == (Loss("loss", 107, 0.25), "a_package_with_a_long_na")
    reader.close()
    writer.close()


@given(
    st.sampled_from(Phase), st.integers(-1, 2**62), st.integers(0, 2**62), st.integers(0, 10**9), st.integers(0, 10**9)
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_written_beat_is_read_back(
    path: Path, phase: Phase, step: int, work: int, now_s: int, extended_s: int
) -> None:
    writer, reader = HeartbeatWriter(path), HeartbeatReader(path)
    writer.phase, writer.step, writer.work, writer.extended_s = phase, step, work, float(extended_s)
    writer.beat(float(now_s))
    assert reader.read_heartbeat() == Heartbeat(phase, step, work, float(now_s), float(extended_s))
    reader.close()
    writer.close()


def test_an_interrupted_beat_leaves_the_previous_one(path: Path) -> None:
    writer, reader = beating(path), HeartbeatReader(path)
    whole = reader.read_heartbeat()
    set_guard(path, 3)  # odd: its writer was killed halfway
    assert reader.read_heartbeat() == whole

    late = HeartbeatReader(path)
    assert late.read_heartbeat() is None, "who comes now cannot know"
    for one in (reader, late, writer):
        one.close()


def test_a_guard_of_zero_means_no_beat(path: Path) -> None:
    """Writing clears the guard for an instant, and zero is an even number."""
    writer, reader = beating(path), HeartbeatReader(path)
    set_guard(path, 0)
    assert reader.read_heartbeat() is None
    writer.beat(2.0)
    beat = reader.read_heartbeat()
    assert beat is not None
    assert beat.beat_s == 2.0
    reader.close()
    writer.close()


def test_a_file_with_other_contents_is_not_a_heartbeat(path: Path) -> None:
    path.write_bytes(b"\0" * 4096)
    reader = HeartbeatReader(path)
    assert reader.read_heartbeat() is None
    reader.close()


def test_a_closed_reader_may_read_again(path: Path) -> None:
    writer, reader = beating(path), HeartbeatReader(path)
    assert reader.read_heartbeat() is not None
    reader.close()
    reader.close()
    assert reader.read_heartbeat() is not None
    reader.close()
    writer.close()


def test_a_removed_file_is_read_to_its_end_and_recreated_with_the_same_contents(path: Path) -> None:
    writer, reader = beating(path), HeartbeatReader(path)
    path.unlink()
    writer.beat(2.0)
    assert reader.read_heartbeat() is None, "it comes too late"
    writer.renew_file()
    assert reader.read_heartbeat() == HeartbeatReader(path).read_heartbeat() is not None
    path.unlink()
    writer.beat(3.0)
    beat = reader.read_heartbeat()
    assert beat is not None
    assert beat.beat_s == 3.0, "it has the old file open"
    writer.renew_file()
    writer.beat(4.0)
    beat = reader.read_heartbeat()
    assert beat is not None
    assert beat.beat_s == 4.0
    reader.close()
    writer.close()


def test_an_existing_file_is_continued(path: Path) -> None:
    writer, before = beating(path), path.stat()
    writer.renew_file()
    assert path.stat() == before
    writer.close()


def test_a_file_that_cannot_be_recreated_leaves_the_writer_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "run" / "trainer.1.heartbeat"
    path.parent.mkdir()
    writer, reader = beating(path), HeartbeatReader(path)
    assert reader.read_heartbeat() is not None
    path.unlink()
    path.parent.rmdir()
    with pytest.raises(FileNotFoundError):
        writer.renew_file()
    writer.beat(2.0)
    beat = reader.read_heartbeat()
    assert beat is not None
    assert beat.beat_s == 2.0
    reader.close()
    writer.close()


def test_row_52_a_file_is_fully_allocated_before_it_is_mapped_and_the_reader_of_a_truncated_one_survives(
    path: Path,
) -> None:
    writer, reader = beating(path), HeartbeatReader(path)
    assert path.stat().st_blocks * 512 >= path.stat().st_size, "no page is missing"
    last = reader.read_heartbeat()
    os.truncate(path, 0)
    assert reader.read_heartbeat() == last
    reader.close()
    writer.close()


@pytest.mark.fault
def test_a_heartbeat_is_whole_while_another_process_beats_at_full_speed_and_outlives_it(path: Path) -> None:
    source = """
        import sys
        from pathlib import Path
        from procsv.ipc.shm.heartbeat import Phase
        from procsv.ipc.shm.heartbeat_file import HeartbeatWriter
        writer = HeartbeatWriter(Path(sys.argv[1]))
        writer.phase = Phase.STEP
        for number in range(10**9):
            writer.step, writer.work, writer.extended_s = number, number, float(number)
            writer.beat(float(number))
            if number == 1000:
                print("beating")
    """
    reader = HeartbeatReader(path)
    with running(source, path) as trainer:
        trainer.wait_said("beating")
        until(reader.read_heartbeat, lambda: None)  # a reader that finds the writer preempted in mid-beat reads again
        last = -1
        for _ in range(20_000):
            beat = reader.read_heartbeat()
            assert beat is not None
            assert beat == Heartbeat(Phase.STEP, beat.step, beat.step, float(beat.step), float(beat.step))
            assert beat.step >= last
            last = beat.step
        trainer.kill()
    assert last > 1000
    dead = reader.read_heartbeat()  # perhaps the last but one, if it was killed in mid-beat
    assert dead is not None
    assert dead.step >= last
    assert reader.read_heartbeat() == dead
    reader.close()
