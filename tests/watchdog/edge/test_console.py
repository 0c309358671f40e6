"""The console echoes the trainer's log, prints our lines, and never blocks the run."""

from __future__ import annotations

import contextlib
import os
import select
from typing import TYPE_CHECKING

from msgspec.structs import replace

from procsv.base.outcome import FitPlace, Loss
from procsv.base.run.logs import last_lines
from procsv.base.run.run_file import RunFile
from procsv.services.summary.event_file import frame
from procsv.watchdog.edge import console as module
from procsv.watchdog.edge.console import Console
from tests.report.test_losses import scalar
from tests.support.launched import NEWS_S_MAX

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def read_all(fd: int) -> bytes:
    data = b""
    while chunk := os.read(fd, 65536):
        data += chunk
    return data


def test_the_logs_of_consecutive_trainers_are_echoed_whole_and_in_order(tmp_path: Path) -> None:
    (out_read, out), (err_read, err) = os.pipe(), os.pipe()
    console = Console(out_fd=out, err_fd=err)
    for number in (1, 2):
        log = tmp_path / f"trainer.{number}.log"
        log.write_bytes(b"step %d\n" % number * 100)
        console.follow(log)
        console.say(f"trainer {number} ended", is_bad=True, traceback="Traceback …\n")
    console.finish()
    os.close(out)
    os.close(err)

    assert read_all(out_read) == b"step 1\n" * 100 + b"step 2\n" * 100
    assert read_all(err_read).decode() == "".join(f"procsv: trainer {n} ended\nTraceback …\n" for n in (1, 2))
    os.close(out_read)
    os.close(err_read)


def test_our_line_after_a_progress_bar_is_on_its_own_line_if_both_go_to_one_file(tmp_path: Path) -> None:
    (read, out), log, after = os.pipe(), tmp_path / "trainer.1.log", tmp_path / "trainer.2.log"
    log.write_bytes(b"step 1\n 7/29 loss: 2.3")
    after.touch()
    err = os.dup(out)
    console = Console(out_fd=out, err_fd=err)
    console.follow(log)
    console.follow(after)  # the rest of the previous one comes first
    console.say("killed")
    console.say("again")
    console.finish()
    os.close(err)
    os.close(out)
    assert read_all(read) == b"step 1\n 7/29 loss: 2.3\nprocsv: killed\nprocsv: again\n"
    os.close(read)


def test_row_36_a_stopped_terminal_blocks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRAIN_S_MAX", 0.01)
    out_read, out = os.pipe()
    console = Console(out_fd=out, err_fd=out)
    log = tmp_path / "trainer.1.log"
    log.write_bytes(b"x" * 2**20)  # more than a pipe holds
    console.follow(log)
    for number in range(20_000):
        console.say(f"line {number}")
    assert not console.finish(), "it is in the middle of the log, which no number of lines has pushed aside"
    shown = take_rest(console, out_read)
    assert shown.count(b"x") == 2**20
    assert 0 < shown.count(b"procsv: line") < 10_000  # a pipe takes 4,400, and twice LINES_WAITING_MAX wait
    os.close(out_read)
    os.close(out)


def take_rest(console: Console, reader: int) -> bytes:
    """Return what a terminal receives that reads again, until the console has finished."""
    shown = list[bytes]()
    os.set_blocking(reader, False)
    while not console.finish():
        with contextlib.suppress(OSError):
            while data := os.read(reader, 2**20):
                shown.append(data)
    with contextlib.suppress(OSError):
        shown.append(os.read(reader, 2**20))
    return b"".join(shown)


def test_a_stopped_terminal_with_a_status_line_blocks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRAIN_S_MAX", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.openpty()
    console = Console(out_fd=theirs, err_fd=theirs, has_status=True)
    assert console.is_live
    log = tmp_path / "trainer.1.log"
    log.write_bytes(b"x" * 99 + b"\n" + b"y" * 2**20)  # more than a terminal holds
    console.follow(log)
    for number in range(20_000):
        console.say(f"line {number}")
    assert not console.finish()
    assert (
        0 < take_rest(console, ours).count(b"procsv: line") < 10_000
    )  # a pipe takes 4,400, and twice LINES_WAITING_MAX wait
    os.close(theirs)
    os.close(ours)


def test_the_status_line_shows_the_loss_and_total_that_the_program_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.openpty()
    console, log = Console(out_fd=theirs, err_fd=theirs, has_status=True), tmp_path / "trainer.1.log"
    log.touch()
    run = RunFile(
        run="r", target="t", logdir=str(tmp_path), run_dir="/r", shm_dir="/s", pid=1, started=0.0, boot="",
        state="running", incarnation=1, step=10, started_at=0.0,
    )  # fmt: skip

    def wait_for(text: str) -> None:
        seen = b""
        while text.encode() not in seen:
            assert select.select([ours], [], [], NEWS_S_MAX)[0], seen.decode()
            seen += os.read(ours, 2**16)

    console.follow(log)
    console.show(run, 1.0)
    wait_for("▸ step 10 · goodput")
    log.write_bytes(b"step 15/900  loss 0.5\n")
    wait_for("step 15/900  loss 0.5")
    console.show(replace(run, step=20), 1.5)
    wait_for("▸ step 20 of 900 (2%) · loss 0.5 at 15 · ")
    later = frame(scalar(0.125, step=5, time_s=1.0)) + frame(scalar(0.25, step=18, time_s=1e11))
    (tmp_path / "events.out.tfevents.1.host").write_bytes(later)
    console.show(replace(run, step=30), 4.0)
    wait_for("▸ step 30 of 900 (3%) · loss 0.25 at 18 · ")
    console.show(replace(run, step=40, fit=FitPlace(1, 1, 2, 40, 50), loss=Loss("loss", 38, 2.5)), 4.5)
    wait_for("▸ step 40 (epoch 1 of 2, batch 40 of 50) · loss 2.5 at 38 · ")
    console.finish()
    os.close(theirs)
    os.close(ours)


def test_row_36_a_closed_terminal_is_survived(tmp_path: Path) -> None:
    out_read, out = os.pipe()
    os.close(out_read)
    console = Console(out_fd=out, err_fd=out)
    (tmp_path / "log").write_text("hello\n")
    console.follow(tmp_path / "log")
    console.say("more")
    assert console.finish()
    os.close(out)


def test_the_last_lines_show_a_progress_line_in_its_last_state(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(f"line {n}" for n in range(100)) + "\nstep 1\rstep 2\rstep 3\nboom\n")

    assert last_lines(log, 3) == ["line 99", "step 3", "boom"]
    assert last_lines(tmp_path / "absent", 3) == []


def test_output_to_a_file_goes_on_once_a_full_disk_has_room(tmp_path: Path) -> None:
    fd, (err_read, err) = os.open("/dev/full", os.O_WRONLY), os.pipe()
    log = tmp_path / "trainer.1.log"
    log.write_bytes(b"step 1\n")
    console = Console(out_fd=fd, err_fd=err)
    console.follow(log)
    for text in ("the log is followed", "its first line found no room"):
        console.say(text)
        assert select.select([err_read], [], [], NEWS_S_MAX)[0]
        assert text in os.read(err_read, 4096).decode()
    with log.open("ab") as stream, (tmp_path / "out").open("wb") as out:
        stream.write(b"step 2\n")
        stream.flush()
        os.dup2(out.fileno(), fd)
        console.finish()
    assert (tmp_path / "out").read_bytes() == b"step 2\n"
    for one in (fd, err_read, err):
        os.close(one)
