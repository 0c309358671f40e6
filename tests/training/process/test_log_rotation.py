"""The log of a program that prints for months is rotated, and readers that follow it miss nothing."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from procsv.base.run.logs import LINGER_S, LOG_BYTES_MAX, LOGS_KEPT_MAX, LogFollower, last_lines, older_part, prune_logs
from tests.support.fake_clock import FakeClock
from tests.support.launched import launched, procsv
from tests.support.programs import running
from tests.support.stale_mount import StaleMount

SOURCE = """
    import os, sys
    from pathlib import Path
    from procsv.training.process.log_rotation import CHECK_S, LogRotation
    log = Path(sys.argv[1])
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    limit = LogRotation(log, 1000)
    for number in range(100):
        print("python", number, "x" * 80, file=sys.stderr)
        os.write(2, f"native {number}\\n".encode())
        limit.rotate_if_due(number * CHECK_S / 2)
    print("printed")
"""


def test_a_log_beyond_its_limit_becomes_the_older_part_and_output_continues_in_a_new_one(tmp_path: Path) -> None:
    log = tmp_path / "trainer.1.log"
    with running(SOURCE, log) as program:
        program.wait_said("printed")  # on stdout, which is not the log and stays as it was
        assert program.wait() == 0

    assert sorted(path.name for path in tmp_path.iterdir()) == ["trainer.1.log", "trainer.1.log.1"]
    assert log.stat().st_size < 1500
    assert 1000 < older_part(log).stat().st_size < 1500
    text = older_part(log).read_text() + log.read_text()
    numbers = [int(match[1]) for match in re.finditer(r"^(?:python|native) (\d+)", text, re.MULTILINE)]
    assert numbers == [number for number in range(numbers[0], 100) for _ in ("python", "native")]
    assert last_lines(log, 20)[-1] == "native 99"
    assert len(last_lines(log, 20)) == 20, "from both parts, if the new one has just begun"


DELETED = """
    import os, shutil, sys
    from pathlib import Path
    from procsv.training.process.log_rotation import CHECK_S, LogRotation
    log = Path(sys.argv[1])
    log.parent.mkdir(parents=True)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    limit = LogRotation(log, 0)
    os.write(2, b"before\\n")
    limit.rotate_if_due(CHECK_S)
    shutil.rmtree(log.parents[1])
    limit.rotate_if_due(2 * CHECK_S)
    assert not log.parents[1].exists(), "which is not the log's to make"
    log.parents[1].mkdir()
    limit.rotate_if_due(3 * CHECK_S)
    os.write(2, b"after\\n")
    print("printed")
"""


def test_a_log_deleted_with_its_directory_continues_once_that_is_recreated(tmp_path: Path) -> None:
    log = tmp_path / "procsv" / "logs" / "trainer.1.log"
    with running(DELETED, log) as program:
        program.wait_said("printed")
        assert program.wait() == 0
    assert log.read_text() == "after\n"


STALE = """
    import os, sys
    from pathlib import Path
    from procsv.training.process.log_rotation import CHECK_S, LogRotation
    log, news = Path(sys.argv[1]), os.dup(1)
    for fd in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), fd)
    limit = LogRotation(log, 0)
    for number, line in enumerate(sys.stdin, 1):
        limit.rotate_if_due(number * CHECK_S)
        os.write(1, line.encode())
        os.write(2, line.encode())
        os.write(news, b"heard\\n")
"""


def test_native_output_continues_in_a_log_that_was_stale_and_its_reader_follows(
    stale_files: StaleMount,
) -> None:
    log = stale_files.directory / "trainer.1.log"
    log.touch()
    reader = LogFollower(log)
    with running(STALE, log) as program:
        for number in (1, 2):
            program.tell(f"line {number}")
            program.wait_said("heard", number)
            assert reader.read_log(100) == f"line {number}\nline {number}\n".encode()
            stale_files.make_stale()
    reader.close()


def test_a_reader_goes_on_when_somebody_has_emptied_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one two ")
    reader = LogFollower(log)
    assert reader.read_log(100) == b"one two "
    os.truncate(log, 0)
    with log.open("ab") as writer:
        writer.write(b"three ")
    assert reader.read_log(100) == b"three "
    reader.close()


def test_a_reader_follows_from_the_old_part_to_the_new_one_and_misses_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one ")
    clock = FakeClock()
    reader = LogFollower(log, monotonic=clock.monotonic)
    assert reader.read_log(100) == b"one "
    with log.open("ab") as writer:
        log.rename(older_part(log))
        assert reader.read_log(100) == b"", "there is no new one yet"
        log.write_bytes(b"three ")
        assert reader.read_log(100) == b"", "its writer still has the old one open"
        writer.write(b"two ")
    assert reader.read_log(100) == b"two "
    assert reader.read_log(100) == b""
    clock.advance(LINGER_S)
    assert reader.read_log(100) == b"three "
    assert reader.read_log(100) == b""
    log.replace(older_part(log))
    log.write_bytes(b"four ")
    assert reader.read_log(100, is_last=True) == b"four "
    reader.close()

    reader = LogFollower(log, with_older=True)
    assert [reader.read_log(100) for _ in range(3)] == [b"three ", b"four ", b""]
    reader.close()
    log.unlink()  # as left by a kill between the two
    reader = LogFollower(log, with_older=True)
    assert [reader.read_log(100) for _ in range(2)] == [b"three ", b""]
    reader.close()
    older_part(log).unlink()
    with pytest.raises(FileNotFoundError):
        LogFollower(log, with_older=True)


def test_an_older_part_is_removed_with_its_log(tmp_path: Path) -> None:
    for number in range(LOGS_KEPT_MAX + 1):
        (tmp_path / f"trainer.{number}.log").touch()
        (tmp_path / f"trainer.{number}.log.1").touch()
    prune_logs(tmp_path / "trainer.99.log")
    kept = {path.name for path in tmp_path.iterdir()}
    assert len(kept) == 2 * (LOGS_KEPT_MAX - 1)
    assert all(name in kept for name in (f"{other}.1" for other in kept if other.endswith(".log")))

    with older_part(next(tmp_path.glob("*.log"))).open("ab") as file:
        file.truncate(LOG_BYTES_MAX + 1)
    prune_logs(tmp_path / "trainer.99.log")
    assert not [path for path in tmp_path.iterdir() if path.stat().st_size > LOG_BYTES_MAX]


@pytest.mark.long
def test_a_run_keeps_its_log_within_the_limit_and_a_follower_sees_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "talks.py").write_text(
        "import itertools, os, sys, threading\n"
        "from pathlib import Path\n"
        "older = Path(os.environ['PROCSV_LOGDIR'], 'procsv', 'logs', 'trainer.1.log.1')\n"
        "for number in itertools.count():\n"
        "    print('line', number, 'x' * 100)\n"
        "    threading.Event().wait(0.005)\n"
        "    if older.exists():\n"
        "        break\n"
        "for more in range(number + 1, number + 100):\n"
        "    print('line', more)\n"
        "print('that was', more)\n"
    )
    logdir = tmp_path / "run"
    with launched(logdir, "--log-limit", "20kB", str(tmp_path / "talks.py")) as run:
        assert run.wait_end() == 0
        said = run.said()
    last = int(said.partition("that was ")[2].split()[0])
    numbers = [int(match[1]) for match in re.finditer(r"^line (\d+)", said, re.MULTILINE)]
    assert numbers == list(range(last + 1)), "each line on the terminal, once"
    shown = procsv("logs", str(logdir))
    assert shown.stdout == "".join(
        (logdir / "procsv" / "logs" / f"trainer.1.log{part}").read_text() for part in (".1", "")
    )
    assert [line for line in shown.stdout.splitlines() if line.startswith("line")] == [
        line for line in said.splitlines() if line.startswith("line")
    ]
    assert json.loads(procsv("status", str(logdir), "--json").stdout)["state"] == "done"
