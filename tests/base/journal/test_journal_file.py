"""The journal holds whole lines from any number of writers. A kill costs at most the line being written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from procsv.base.identity import CHECKPOINT, TRAINER, WATCHDOG, TaskId
from procsv.base.journal import entries
from procsv.base.journal import file as journal_file
from procsv.base.journal.file import Journal, JournalReader, read_program_pids
from procsv.base.journal.file import read_journal as read_lines
from procsv.base.journal.line import Line
from tests.support.fake_clock import FakeClock
from tests.support.journal import append, read_journal
from tests.support.programs import running
from tests.support.stale_mount import StaleMount


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "procsv" / "journal.jsonl"


def test_a_line_has_its_time_event_role_attempt_and_fields(path: Path) -> None:
    clock = FakeClock(wall_offset_s=100.0)
    journal = Journal(path, clock)
    clock.advance(1.25)
    killed = entries.Exited(pid=7, code=None, signal="SIGKILL", cause="killed", evidence="é", step=840)
    journal.append(killed, TRAINER, 3)
    journal.close()
    journal.close()

    text = '{"time":101.25,"event":"exited","role":"trainer","incarnation":3,"pid":7,"code":null,"signal":"SIGKILL",'
    assert path.read_text() == text + '"cause":"killed","evidence":"é","step":840}\n'
    assert list(read_lines(path)) == [Line(101.25, "trainer", 3, killed)]


def test_a_missing_journal_reads_as_empty(path: Path) -> None:
    assert list(read_lines(path)) == []


def test_pids_of_programs_come_from_all_launches_or_from_the_last_one(path: Path) -> None:
    assert read_program_pids(path) == set()
    journal = Journal(path, FakeClock())
    for first in (10, 20):
        append(journal, "run_started", WATCHDOG, 1, pid=first)
        for number, task in enumerate((CHECKPOINT, TRAINER, TaskId("worker", 1)), first + 1):
            append(journal, "spawned", task, 1, pid=number)
    journal.close()
    assert read_program_pids(path) == {12, 13, 22, 23}
    assert read_program_pids(path, of_last_launch=True) == {22, 23}


def test_earlier_lines_stay_when_the_journal_is_opened_again(path: Path) -> None:
    for number in (1, 2):
        journal = Journal(path, FakeClock())
        append(journal, "run_started", WATCHDOG, number)
        journal.close()
    assert [line["incarnation"] for line in read_journal(path)] == [1, 2]


@pytest.mark.parametrize("torn", [b'{"time": 1.0, "ev', b"\xff\xfe", b"[1, 2]", b"7", b'"text"', b"\0\0\0"])
def test_a_torn_last_line_is_skipped_and_ended_by_the_next_writer(path: Path, torn: bytes) -> None:
    journal = Journal(path, FakeClock())
    append(journal, "spawned", TRAINER, 1)
    journal.close()
    with path.open("ab") as file:
        file.write(torn)
    assert [line["event"] for line in read_journal(path)] == ["spawned"]

    journal = Journal(path, FakeClock())
    append(journal, "ready", TRAINER, 1)
    journal.close()
    assert [line["event"] for line in read_journal(path)] == ["spawned", "ready"]
    assert torn + b"\n" in path.read_bytes()


def test_a_line_cut_short_by_a_full_disk_does_not_damage_the_next_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, write = Journal(path, FakeClock()), os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data[:20]))
        append(journal, "spawned", TRAINER, 1)
    append(journal, "ready", TRAINER, 1)
    append(journal, "recovered", TRAINER, 1)
    journal.close()

    assert [line["event"] for line in read_journal(path)] == ["ready", "recovered"]
    assert b"\n\n" not in path.read_bytes()


def test_any_text_stays_within_its_line(path: Path) -> None:
    journal = Journal(path, FakeClock())
    append(journal, "exited", TRAINER, 1, evidence="two\nlines\r\u2028 and \x00")
    append(journal, "run_started", TRAINER, 1, target="not UTF-8: \udcff", args=("\udc80",), hosts={"a": "\udc81"})
    journal.close()

    first, second = read_journal(path)
    assert first["evidence"] == "two\nlines\r\u2028 and \x00"
    assert (second["target"], second["args"], second["hosts"]) == ("not UTF-8: \udcff", ("\udc80",), {"a": "\udc81"})
    assert json.loads(path.read_bytes().splitlines()[1])["target"] == "not UTF-8: \\udcff", "for other readers"


@pytest.mark.fault
def test_two_concurrent_writers_never_mix_within_a_line(path: Path) -> None:
    source = """
        import sys
        from pathlib import Path
        from procsv.base.identity import TRAINER
        from procsv.base.system.system_clock import SystemClock
        from procsv.base.journal.file import Journal
        from tests.support.journal import append
        journal = Journal(Path(sys.argv[1]), SystemClock())
        print("ready")
        sys.stdin.readline()
        for number in range(2000):
            append(journal, "exited", sys.argv[2], number, evidence=sys.argv[2] * (number % 500))
        print("done")
        sys.stdin.readline()
    """
    with running(source, path, "a") as a, running(source, path, "b") as b:
        for program in (a, b):
            program.wait_said("ready")
        for program in (a, b):
            program.tell()
        for program in (a, b):
            program.wait_said("done")
    lines = list(read_journal(path))
    for role in "ab":
        mine = [line for line in lines if line["role"] == role]
        assert [line["incarnation"] for line in mine] == list(range(2000))
        assert all(line["evidence"] == role * (line["incarnation"] % 500) for line in mine)
    assert len(path.read_bytes().splitlines()) == 4000


@pytest.mark.fault
def test_a_killed_writer_leaves_whole_lines_except_for_its_last(path: Path) -> None:
    source = """
        import sys
        from pathlib import Path
        from procsv.base.identity import TRAINER
        from procsv.base.system.system_clock import SystemClock
        from procsv.base.journal.file import Journal
        from tests.support.journal import append
        journal = Journal(Path(sys.argv[1]), SystemClock())
        for number in range(10**9):
            append(journal, "logdir_adopted", TRAINER, number, logdir="x" * 3000)
            if number == 50:
                print("writing")
    """
    with running(source, path) as program:
        program.wait_said("writing")
        program.kill()
    whole = path.read_bytes().count(b"\n")  # the kill may end a write between two pages, within the line
    numbers = [line["incarnation"] for line in read_journal(path)]
    assert numbers == list(range(whole))
    assert whole > 50

    journal = Journal(path, FakeClock())
    append(journal, "run_started", WATCHDOG, 2)
    journal.close()
    assert [line["event"] for line in read_journal(path)][whole:] == ["run_started"]


def test_a_logdir_that_was_deleted_and_recreated_gets_all_lines(path: Path) -> None:
    journal = Journal(path, FakeClock())
    append(journal, "run_started", WATCHDOG, 1)
    shutil.rmtree(path.parent)
    append(journal, "spawned", TRAINER, 1)
    path.parent.mkdir()
    for number in (2, 3):
        append(journal, "spawned", TRAINER, number)
    journal.close()
    assert [(line["event"], line["incarnation"]) for line in read_journal(path)] == [
        ("run_started", 1),
        *(("spawned", number) for number in (1, 2, 3)),
    ]


def test_a_logdir_that_is_moved_away_and_back_misses_no_line(path: Path) -> None:
    journal, away = Journal(path, FakeClock()), path.parent.with_name("away")
    append(journal, "spawned", TRAINER, 1)
    path.parent.rename(away)
    append(journal, "spawned", TRAINER, 2)
    away.rename(path.parent)
    append(journal, "spawned", TRAINER, 3)
    journal.close()
    assert [line["incarnation"] for line in read_journal(path)] == [1, 2, 3]


def test_a_reader_that_reads_repeatedly_sees_the_same_as_one_that_reads_once(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    reader = JournalReader(path)
    assert reader.lines() == []
    line = b'{"time": %d.0, "event": "e", "role": "trainer", "incarnation": 1}'
    torn, rest = (line % 3)[:20], (line % 3)[20:]
    appended = (line % 1, b"\n", line % 2 + b"\n" + torn, rest, b"\n\xff\xfe\n", line % 4 + b"\r" + line % 5)
    for number, piece in enumerate(appended):
        with path.open("ab") as file:
            file.write(piece)
        assert reader.lines() == list(read_lines(path)), number
    reader.lines().clear()
    assert [line.time for line in reader.lines()] == [1.0, 2.0, 3.0, 4.0, 5.0]
    path.write_bytes(line % 7 + b"\n")  # its directory was deleted, and the run has begun another file
    assert [line.time for line in reader.lines()] == [7.0]
    path.unlink()
    assert reader.lines() == []


def test_a_stale_journal_is_reopened_and_reports_what_its_filesystem_lost(stale_files: StaleMount) -> None:
    path, said = stale_files.directory / "procsv" / "journal.jsonl", list[str]()
    journal = Journal(path, FakeClock(), said.append)
    for number in (1, 2):
        append(journal, "spawned", TRAINER, number)
        stale_files.make_stale()
    stale_files.make_stale_at(path.name)
    append(journal, "spawned", TRAINER, 3)
    assert [line["incarnation"] for line in read_journal(path)] == [1, 2, 3]
    assert said == []

    whole = path.stat().st_size
    stale_files.make_stale()
    os.truncate(path, whole - 20)  # written, but not yet on the server
    append(journal, "spawned", TRAINER, 4)
    assert [line["incarnation"] for line in read_journal(path)] == [1, 2, 4]
    assert len(said) == 1
    assert str(path) in said[0]
    assert "20 bytes" in said[0]

    stale_files.make_stale()
    path.unlink()
    append(journal, "spawned", TRAINER, 5)
    stale_files.make_stale()
    os.truncate(path, 20)
    journal.close()
    assert list(read_journal(path)) == []
    assert len(said) == 3


def test_a_reader_whose_file_goes_stale_while_reading_reads_it_again(stale_files: StaleMount) -> None:
    path = stale_files.directory / "procsv" / "journal.jsonl"
    journal = Journal(path, FakeClock())
    append(journal, "ready", TRAINER, 1)
    journal.close()
    stale_files.replace_files()
    assert [line["event"] for line in read_journal(path)] == ["ready"]
    stale_files.replace_files()
    assert [line.entry.event for line in JournalReader(path).lines()] == ["ready"]
    assert stale_files.met_by(os.getpid()) == {"read"}


def test_a_journal_at_its_size_limit_is_rotated_and_both_parts_are_read_as_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_file, "BYTES_MAX", 200)
    journal, reader, read = Journal(path, FakeClock()), JournalReader(path), []
    for number in range(1, 6):
        append(journal, "spawned", TRAINER, number, pid=number)
        read.append([line.incarnation for line in reader.lines()])
    journal.close()

    older = path.with_name("journal.jsonl.1")
    assert older.stat().st_size > 200
    assert [line.incarnation for line in read_lines(path)] == [1, 2, 3, 4, 5] == read[-1]
    assert read_program_pids(path) == {1, 2, 3, 4, 5}

    journal = Journal(path, FakeClock())
    for number in range(6, 30):
        append(journal, "spawned", TRAINER, number, pid=number)
    journal.close()
    kept = [line.incarnation for line in read_lines(path)]
    assert kept == list(range(kept[0], 30))
    assert kept[0] > 5
    assert older.stat().st_size + path.stat().st_size < 4 * 200
