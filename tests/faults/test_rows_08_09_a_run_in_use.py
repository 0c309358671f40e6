"""Rows 2, 8, 9 and 32 and the commands, on one detached run that is treated as people and schedulers treat it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from procsv.base.identity import COMMAND_LINE
from procsv.base.system.system_clock import SystemClock
from procsv.cli.directory import ASK_S_MAX, find_run
from procsv.cli.status import read_status
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.messages import MESSAGE_BYTES_MAX
from procsv.ipc.messaging.zmq_transport import Client, Waiter, new_context
from tests.support.journal import read_journal
from tests.support.launched import environment, procsv

pytestmark = pytest.mark.fault

NEWS_S_MAX = 300.0
FROZEN_S = 5.0  # as the row says


class Detached:
    def __init__(self, logdir: Path) -> None:
        self.logdir, self.took_s = logdir, list[float]()

    def events(self, name: str, role: str = "") -> list[dict[str, Any]]:
        lines = read_journal(self.logdir / "procsv" / "journal.jsonl")
        return [line for line in lines if line["event"] == name and role in ("", line["role"])]

    def status(self) -> dict[str, Any]:
        """Return the status as `procsv status --json` does. Record how long it took."""
        begun_s = time.monotonic()
        status = read_status(find_run(str(self.logdir)))
        self.took_s.append(time.monotonic() - begun_s)
        assert status["running"]
        return status

    def answer(self) -> dict[str, Any]:
        """Return the watchdog's own status. On a busy machine the files may answer first, and they know less."""
        answers = list[dict[str, Any]]()

        def is_there() -> bool:
            answers.append(self.status())
            return bool(answers[-1]["processes"])

        self.until("answer of the watchdog", is_there)
        return answers[-1]

    def pids(self) -> dict[str, int]:
        """Return all pids except the standby's, which starts when the machine has time for it."""
        rows = self.answer()["processes"]
        return {row["role"]: row["pid"] for row in rows if row["pid"] and row["role"] != "standby"}

    def until(self, what: str, holds: Callable[[], Any]) -> None:
        deadline_s, pause = time.monotonic() + NEWS_S_MAX, threading.Event()
        while not holds():
            assert time.monotonic() < deadline_s, (
                f"no {what}: {list(read_journal(self.logdir / 'procsv/journal.jsonl'))}"
            )
            pause.wait(0.05)

    def until_ready(self, times: int) -> None:
        self.until(f"{times} x ready", lambda: len(self.events("ready")) >= times)

    def trains_on(self) -> None:
        step = self.status()["step"]
        self.until("a later step", lambda: self.status()["step"] > step)


@contextlib.contextmanager
def detached(tmp_path: Path, *args: str) -> Iterator[Detached]:
    logdir = tmp_path / "logdir"
    done = procsv("launch", "--detach", "--logdir", str(logdir), *args)
    assert done.returncode == 0, done.stderr
    assert f"procsv logs -f {logdir}" in done.stdout
    run = Detached(logdir)
    pid = find_run(str(logdir)).pid
    assert os.getsid(pid) == pid  # no terminal of ours can end it
    try:
        yield run
    finally:
        with contextlib.suppress(psutil.Error):
            watchdog = psutil.Process(pid)
            tree = [watchdog, *watchdog.children(recursive=True)]
            for process in tree:
                process.kill()
            psutil.wait_procs(tree, 10)


def send_garbage(run: Detached) -> int:
    """Send garbage to every socket of the run. Return the number of foreign messages."""
    sent = 0
    context, waiter = new_context(), Waiter()
    for path in sorted(find_run(str(run.logdir)).paths.run_dir.glob("*.sock")):
        client = Client(context, path, Address("", COMMAND_LINE, 1), SystemClock())
        waiter.register(client)
        while not client.resend_due():
            assert waiter.wait(NEWS_S_MAX)
        for garbage in (b"", b"\xff" * 1000, b"\x90", b"{}", b"x" * (MESSAGE_BYTES_MAX + 1)):
            client.socket.send_multipart([garbage], flags=0)
            sent += 1
        client.socket.send_multipart([b"two", b"frames"], flags=0)
        sent += 1
        waiter.remove(client)
        client.close(linger_ms=5000)
    context.term()
    return sent


@pytest.mark.long
def test_row_08_row_09_row_32_a_detached_run_survives_freezes_bad_messages_stop_requests_restarts_crashes_and_stops(
    tmp_path: Path,
) -> None:
    received = tmp_path / "heard"
    command = f"{sys.executable} -c \"import sys; open(sys.argv[1], 'a').write(sys.stdin.read())\" {received}"
    program = ("tests.support.numpy_training", "1000000", "0.02")
    with detached(tmp_path, "--on-event", command, "--backoff", "0.1s..1s", "--grace", "5m", *program) as run:
        run.until_ready(1)
        follow = [sys.executable, "-m", "procsv", "logs", "-f", str(run.logdir)]
        with (
            (tmp_path / "followed").open("w") as followed,
            subprocess.Popen(follow, env=environment(), stdout=followed) as follower,
        ):
            try:
                _use(run)
                run_over = procsv("stop", str(run.logdir))
                assert run_over.returncode == 0, run_over.stderr
                assert follower.wait(NEWS_S_MAX) == 0
            finally:
                follower.kill()
    logs = sorted((run.logdir / "procsv" / "logs").glob("trainer.*.log"), key=lambda path: int(path.name.split(".")[1]))
    assert len(logs) == 4
    lines = (tmp_path / "followed").read_text().splitlines(keepends=True)
    assert "".join(line for line in lines if line[0] != "─") == "".join(path.read_text() for path in logs)
    assert sum(line[0] == "─" for line in lines) == 3, "a line at each restart says what has ended the attempt before"
    told = [json.loads(line)["event"] for line in received.read_text().splitlines()]
    assert sorted(told) == ["exited", "preempt_notice", "stopped"]  # the crash; another process's SIGTERM; the end
    assert find_run(str(run.logdir)).exit_code == 75
    assert "stopped at step" in procsv("logs", str(run.logdir), "--role", "watchdog").stdout


def _use(run: Detached) -> None:
    # Row 9: every process but the watchdog is frozen for a while, and none restarts for it.
    before, pause = run.pids(), threading.Event()
    frozen = [pid for role, pid in before.items() if role != "watchdog"]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    until_s = time.monotonic() + FROZEN_S
    run.took_s.clear()
    while time.monotonic() < until_s or len(run.took_s) < 4:
        run.status()
        pause.wait(0.5)
    assert min(run.took_s) < 1.0 + ASK_S_MAX  # whatever they do; allow for a busy machine
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    run.trains_on()
    assert run.pids() == before
    run.until("word of it", lambda: run.events("frozen"))
    assert run.events("frozen")[0]["seconds"] >= FROZEN_S / 2, "which is no training, in the account either"

    # Row 32: foreign messages are counted and do no harm.
    sent = send_garbage(run)
    run.until("the count", lambda: run.answer()["dropped_messages"] >= sent)
    run.trains_on()
    assert run.pids() == before

    # Row 8: another process asks it to end; it saves at the boundary and restarts for free without
    # losing a step.
    os.kill(before["trainer"], signal.SIGTERM)
    run.until_ready(2)
    _no_step_was_lost(run, 1)

    # By hand.
    restarted = procsv("restart", str(run.logdir))
    assert restarted.returncode == 0, restarted.stderr
    assert "attempt 3" in restarted.stdout
    run.until_ready(3)
    _no_step_was_lost(run, 2)
    assert run.events("restarting")[1]["why"] == "procsv restart"
    assert "manual" in {entry["reason"] for entry in run.events("checkpoint_durable")}

    # Row 2: the stacks are kept.
    os.kill(run.pids()["trainer"], signal.SIGSEGV)
    run.until_ready(4)
    report = json.loads((run.logdir / "procsv" / "crashes" / "3.json").read_text())
    assert report["sentence"].startswith("trainer 3 (pid ")
    assert "crashed with SIGSEGV in " in report["sentence"]
    assert "numpy_training.py" in report["stacks"]
    status = run.answer()
    assert (status["restarts"], status["last_exit"]["signal"], status["memory"]["total"] > 0) == (3, "SIGSEGV", True)


def _no_step_was_lost(run: Detached, restart: int) -> None:
    ended, recovered = run.events("exited", "trainer")[restart - 1], run.events("recovered")[restart]
    assert (ended["code"], run.events("restarting")[restart - 1]["delay"]) == (75, 0.0)
    assert recovered["step"] == ended["step"] > 0
