"""Event files can be read by TensorBoard and TensorFlow, are repaired after a kill and stay whole
on a full disk.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from tensorboard.backend.event_processing import event_file_loader

from procsv.base.run.paths import find_paths
from procsv.base.system import failpoints
from procsv.ipc.messaging.summary_messages import RunMetrics
from procsv.services.summary import event_file, stream_file
from procsv.services.summary.event_file import EventFile, frame, new_name, version_event
from procsv.services.summary.metrics_file import MetricsFile
from procsv.services.summary.stream_file import Stream
from tests.summary.real_service import event, records_in, steps_in
from tests.support.stale_mount import StaleMount


def written(path: Path, count: int, offset: int = 0) -> EventFile:
    file = EventFile(path, offset)
    file.append_records([event(number) for number in range(1, count + 1)], 5.0)
    return file


def test_tensorboard_reads_the_written_file(tmp_path: Path) -> None:
    path = tmp_path / "events"
    written(path, 3).close()

    events = list(event_file_loader.EventFileLoader(str(path)).Load())
    assert [e.step for e in events] == [0, 1, 2, 3]
    assert (events[0].wall_time, events[0].file_version) == (5.0, "brain.Event:2")
    assert events[0].source_metadata.writer == "procsv.services.summary"


def test_tensorflow_reads_the_written_file(tmp_path: Path) -> None:
    import tensorflow as tf

    path = tmp_path / "events"
    written(path, 3).close()
    read = [bytes(record.numpy()) for record in tf.data.TFRecordDataset(str(path))]

    assert read == [version_event(5.0), event(1), event(2), event(3)]


def test_an_empty_record_and_a_large_one_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "events"
    file = EventFile(path)
    file.append_records([b"", event(1, size=3 * 2**20)], 5.0)
    file.close()

    assert records_in(path) == [b"", event(1, size=3 * 2**20)]


def test_a_parcel_gives_the_same_bytes_as_a_record_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_file, "CHUNK_BYTES", 7)
    parcel = tmp_path / "parcel"
    parcel.write_bytes(event(2, size=100))
    one, other = EventFile(tmp_path / "one"), EventFile(tmp_path / "other")
    one.append_records([event(1), parcel, event(3)], 5.0)
    other.append_records([event(1), event(2, size=100), event(3)], 5.0)

    assert one.path.read_bytes() == other.path.read_bytes()
    assert one.offset == one.path.stat().st_size
    one.close()
    other.close()


@pytest.mark.parametrize("torn", [1, 8, 12, 13, 20])
def test_a_torn_tail_is_cut_off_and_the_whole_records_before_it_are_kept(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "events"
    file = written(path, 2)
    noted = file.offset
    file.append_records([event(3), event(4)], 5.0)
    file.close()
    with path.open("ab") as tail:
        tail.write(frame(event(5))[:torn] if torn < 20 else os.urandom(500))

    repaired = EventFile(path, noted)
    assert repaired.repair() == 2
    assert path.stat().st_size == repaired.offset, "a shorter record would leave the end of the torn one"
    repaired.append_records([event(5)], 6.0)
    assert steps_in(path) == [1, 2, 3, 4, 5]
    repaired.close()


def test_a_changed_byte_after_the_noted_offset_ends_the_recovery(tmp_path: Path) -> None:
    path = tmp_path / "events"
    file = written(path, 2)
    noted = file.offset
    file.append_records([event(3), event(4)], 5.0)
    file.close()
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(data)

    repaired = EventFile(path, noted)
    assert repaired.repair() == 1
    assert path.stat().st_size == repaired.offset
    assert steps_in(path) == [1, 2, 3]
    repaired.close()


def test_a_file_whose_writer_was_killed_in_the_first_record_is_started_over(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(frame(version_event(5.0))[:10])
    file = EventFile(path)

    assert file.repair() == 0
    file.append_records([event(1)], 6.0)
    assert steps_in(path) == [1]
    file.close()


@pytest.mark.parametrize("action", ["enospc", "eio", "torn"])
def test_a_record_that_the_disk_refuses_leaves_nothing_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    path = tmp_path / "events"
    file = written(path, 2)
    monkeypatch.setattr(failpoints, "_plan", failpoints.parse(f"summary.mid_record=1*{action}"))
    with pytest.raises(OSError, match=r"error|space"):
        file.append_records([event(3)], 5.0)

    assert steps_in(path) == [1, 2]
    file.append_records([event(3)], 5.0)
    assert steps_in(path) == [1, 2, 3]
    file.close()


def test_a_tail_that_cannot_be_cut_off_now_is_cut_off_before_the_next_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events"
    file = written(path, 2)

    def refuse(fd: int, length: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(failpoints, "_plan", failpoints.parse("summary.mid_record=1*torn"))
        broken.setattr(os, "ftruncate", refuse)
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                file.append_records([event(3)], 5.0)
    assert path.stat().st_size > file.offset

    file.append_records([event(4)], 5.0)
    assert steps_in(path) == [1, 2, 4]
    file.close()


def test_a_new_file_sorts_after_the_existing_ones(tmp_path: Path) -> None:
    names = []
    for number, wall_s in enumerate([1700000000.9, 1700000000.9, 1600000000.0, 1700000100.0]):
        names.append(new_name(tmp_path, wall_s, number, ".eval"))
        (tmp_path / names[-1]).touch()

    assert names == sorted(names)
    assert len(set(names)) == 4
    assert [name.split(".")[3] for name in names] == ["1700000000", "1700000001", "1700000002", "1700000100"]
    assert all(name.startswith("events.out.tfevents.") and name.endswith(".eval") for name in names)


def test_the_name_of_a_file_in_a_missing_directory_uses_the_time(tmp_path: Path) -> None:
    assert new_name(tmp_path / "no", 12.0, 0, "").startswith("events.out.tfevents.0000000012.")


def test_a_name_that_another_machine_has_taken_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines with one host name, whose services have the same pid and start in the same second."""
    paths, names = find_paths(tmp_path), iter(["events.same", "events.same", "events.other"])
    paths.run_dir.mkdir(parents=True)
    monkeypatch.setattr(stream_file, "new_name", lambda *_: next(names))
    streams = [Stream(paths, "0" * 16, f"{number}-0", tmp_path, "") for number in (1, 2)]
    for number, stream in enumerate(streams, 1):
        stream.append_records([event(number)], 5.0)
    for number, stream in enumerate(streams, 1):
        stream.append_records([event(10 * number)], 6.0)
        stream.close_file()
    assert [steps_in(tmp_path / name) for name in ("events.same", "events.other")] == [[1, 10], [2, 20]]
    shutil.rmtree(paths.run_dir)


def test_a_stale_file_is_reopened_and_missing_records_are_reported(stale_files: StaleMount) -> None:
    path = stale_files.directory / "events"
    file = written(path, 2)
    stale_files.make_stale()
    with pytest.raises(OSError, match="Stale"):
        file.append_records([event(3)], 5.0)
    assert file.trouble() == ""
    file.append_records([event(3)], 5.0)
    assert steps_in(path) == [1, 2, 3]

    stale_files.make_stale()
    os.truncate(path, 50)
    assert "shorter" in file.trouble()
    stale_files.make_stale()
    path.unlink()
    assert file.trouble() == "was deleted"
    file.close()


def test_records_continue_in_a_file_that_was_stale_and_in_a_new_one_if_some_are_lost(
    stale_files: StaleMount, capfd: pytest.CaptureFixture[str]
) -> None:
    logdir = stale_files.directory
    paths = find_paths(logdir)
    paths.run_dir.mkdir(parents=True)
    stream = Stream(paths, "0" * 16, "1-0", logdir, "")
    figures = MetricsFile(logdir / "procsv")
    (logdir / "procsv").mkdir()
    for number in (1, 2):
        stream.append_records([event(number)], 5.0)
        figures.write_record(RunMetrics(wall_s=5.0, step=number, values={"goodput": 0.5}), 5.0)
        stale_files.make_stale()
    (path,), (of_figures,) = (list(folder.glob("events*")) for folder in (logdir, logdir / "procsv"))
    assert steps_in(path) == [1, 2]
    assert steps_in(of_figures) == [0, 1, 2], "the layout, and the figures"

    os.truncate(path, 50)
    stream.append_records([event(3)], 5.0)
    stale_files.make_stale()
    stream.close_file()
    figures.close()
    (new,) = set(logdir.glob("events*")) - {path}
    assert steps_in(new) == [3]
    said = capfd.readouterr().err
    assert (said.count("\n"), str(path) in said) == (1, True)
    shutil.rmtree(paths.run_dir)
