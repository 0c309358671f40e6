"""Signals that a program handles reach it as without procsv, and no signal ends the supervisor silently."""

from __future__ import annotations

import os
import re
import signal
from functools import partial
from pathlib import Path

import psutil
import pytest

from procsv.base.identity import TRAINER
from procsv.base.signals import IGNORED, PASSED_ON, STOPS, Default
from procsv.ipc.shm.heartbeat_file import HeartbeatReader
from tests.support.programs import ignores
from tests.watchdog.test_main import IDLE, NEWS_S_MAX, Run, launched

pytestmark = pytest.mark.fault

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"

HEAD = """
import asyncio, os, signal, sys, threading, time

def save(*_):
    time.sleep(0.5)  # it takes its time, as a save does
    open("saved", "a").write("x")
"""
BEGUN = "print('begun', flush=True)\n"
WAIT = f"{BEGUN}while True:\n    time.sleep(0.05)\n"
# Programs with their own SIGTERM handlers, and each one's exit code.
HANDLERS = {
    "exits": ("def leave(*_):\n    save(); sys.exit(0)\nsignal.signal(signal.SIGTERM, leave)\n" + WAIT, 0),
    "exits with a code": ("def leave(*_):\n    save(); sys.exit(3)\nsignal.signal(signal.SIGTERM, leave)\n" + WAIT, 3),
    "interrupts": (
        "def leave(*_):\n    raise KeyboardInterrupt\nsignal.signal(signal.SIGTERM, leave)\n"
        f"{BEGUN}try:\n    while True: time.sleep(0.05)\nexcept KeyboardInterrupt:\n    save()\n",
        0,
    ),
    "sets a flag": (
        "asked = threading.Event()\nsignal.signal(signal.SIGTERM, lambda *_: asked.set())\n"
        f"{BEGUN}while not asked.is_set(): time.sleep(0.05)\nsave()\n",
        0,
    ),
    "of asyncio": (
        "async def main():\n    asked = asyncio.Event()\n"
        "    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)\n"
        f"    {BEGUN}    await asked.wait()\n    save()\nasyncio.run(main())\n",
        0,
    ),
}


def saved(tmp_path: Path) -> str:
    path = tmp_path / "saved"
    return path.read_text() if path.exists() else ""


def told(run: Run, text: str) -> bool:
    return text in run.said()


@pytest.mark.parametrize("kind", HANDLERS)
def test_a_program_with_its_own_sigterm_handler_has_run_it_when_the_run_ends(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, code = HANDLERS[kind]
    monkeypatch.chdir(tmp_path)
    with launched(tmp_path, HEAD + source, grace_s=60.0) as run:
        run.begun()
        run.until("its handler in the heartbeat", partial(has_handler, run, signal.SIGTERM))
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == code
        assert saved(tmp_path) == "x"
        assert run.file().state == "stopped"
        assert told(run, "program handles SIGTERM")
        assert not run.journal("run_completed"), "the same command starts it again"


def test_a_program_that_handles_sigterm_and_is_preempted_alone_restarts_for_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, _ = HANDLERS["exits"]
    monkeypatch.chdir(tmp_path)
    with launched(tmp_path, HEAD + source, grace_s=60.0) as run:
        run.begun()
        os.kill(run.pid("trainer"), signal.SIGTERM)
        run.begun(2)
        assert saved(tmp_path) == "x"
        assert run.journal("exited", "trainer")[0]["code"] == 75
        assert not run.journal("failed")
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 0


def test_a_program_that_handles_sigterm_and_continues_is_ended_within_the_grace_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with launched(tmp_path, HEAD + "signal.signal(signal.SIGTERM, save)\n" + WAIT, grace_s=5.0) as run:
        run.begun().process.send_signal(signal.SIGTERM)
        assert run.end() == 70  # even if its handler was newer than its heartbeat
        assert saved(tmp_path) == "x"
        assert told(run, "nothing was saved")


CATCHES = """
import faulthandler, signal, time
def note(number, frame):
    print("came:", signal.Signals(number).name, flush=True)
for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, note)
faulthandler.register(signal.SIGUSR2)  # a handler in C, of which Python knows nothing
print("begun", flush=True)
while True:
    time.sleep(0.05)
"""


def test_signals_that_the_program_handles_are_forwarded_to_it(tmp_path: Path) -> None:
    with launched(tmp_path, CATCHES) as run:
        run.begun()
        run.until("its handlers in the heartbeat", partial(has_handler, run, signal.SIGQUIT))
        for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT):
            run.process.send_signal(number)
            run.until(f"{number.name} in the program", partial(has_printed, run, f"came: {number.name}"))
        run.process.send_signal(signal.SIGUSR2)
        run.until("the stack", lambda: "hread 0x" in run.log())
        assert told(run, "SIGUSR1: passed on")
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 130


def has_printed(run: Run, text: str) -> bool:
    return text in run.log()


def has_handler(run: Run, number: signal.Signals) -> bool:
    reader = HeartbeatReader(run.file().paths.heartbeat(TRAINER, 1))
    try:
        beat = reader.read_heartbeat()
        return beat is not None and bool(beat.handles >> number & 1)
    finally:
        reader.close()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU])
def test_an_unhandled_signal_is_named_once_and_the_run_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    with launched(tmp_path, IDLE) as run:
        run.begun()
        for role in ("checkpoint", "summary"):
            run.until(f"the {role} service to ignore it", partial(ignores, run.pid(role), number))
        children = {child.pid for child in psutil.Process(run.process.pid).children()}
        for pid in (run.process.pid, *children, run.process.pid):  # as Slurm's --signal: to every process
            if number in PASSED_ON or pid == run.process.pid:
                os.kill(pid, number)
        run.until("the line", partial(told, run, f"{number.name}: ignored"))
        assert ("--preempt-signal" in run.said()) == number.name.startswith("SIGUSR")
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 130
        assert run.said().count(number.name + ":") == 1
        assert [line["pid"] for line in run.journal("spawned", "trainer")] == [run.pid("trainer")]
        assert not run.journal("service_restarted")


def test_sigquit_ends_the_program_at_once_and_the_run_with_a_message(tmp_path: Path) -> None:
    with launched(tmp_path, IDLE, grace_s=NEWS_S_MAX) as run:
        run.begun().process.send_signal(signal.SIGQUIT)
        assert run.end() == 70
        assert told(run, "SIGQUIT: ")


def test_a_closed_terminal_does_not_end_a_run_under_nohup(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with launched(tmp_path, IDLE) as run:
            run.begun().process.send_signal(signal.SIGHUP)
            run.process.send_signal(signal.SIGUSR1)
            run.until("the next signal", partial(told, run, "SIGUSR1: ignored"))
            assert "SIGHUP" not in run.said()
            run.process.send_signal(signal.SIGTERM)
            assert run.end() == 130
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_the_parent_has_blocked_still_stops_the_run(tmp_path: Path) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        with launched(tmp_path, IDLE) as run:
            run.begun().process.send_signal(signal.SIGTERM)
            assert run.end() == 130
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_the_table_of_signals_in_the_documents_matches_the_code() -> None:
    section = PAGE.read_text().partition("### Signals\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(SIG\w+)`[^|]*\| ([^|]+) \|", section, re.MULTILINE))
    means = {Default.STOP: "saves and stops", Default.STOP_NOW: "ends the program at once", Default.GO_ON: "goes on"}
    for number in {*STOPS, *PASSED_ON, *IGNORED}:
        row = rows.pop(number.name)
        default = PASSED_ON.get(number, Default.STOP if number in STOPS else Default.GO_ON)
        assert means[default] in row, number.name
        assert ("passed on" in row) == (number in PASSED_ON), number.name
    assert not rows
