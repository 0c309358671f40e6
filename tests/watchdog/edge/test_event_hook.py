"""--on-event: real commands that hear of events, and what they may not do to the run."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from procsv.base.journal.entries import Exited
from procsv.base.journal.line import Line
from procsv.watchdog.edge import event_hook
from procsv.watchdog.edge.event_hook import RUNNING_MAX, WAITING_MAX, EventHook, concerns
from tests.support.journal import an_entry

pytestmark = pytest.mark.fault
NEWS_S_MAX = 300.0


class Desk:
    def __init__(self, tmp_path: Path) -> None:
        self.log, self.said = tmp_path / "on-event.log", list[str]()
        self.notices: EventHook

    def command(self, source: str, *args: object, time_s: float = 30.0) -> EventHook:
        words = " ".join(f"'{word}'" for word in (sys.executable, "-c", source, *args))
        self.notices = EventHook(words, self.log, os.environ, self.said.append, time_s)
        return self.notices

    def wait(self) -> None:
        until_s = time.monotonic() + NEWS_S_MAX
        while self.notices.is_busy:
            assert time.monotonic() < until_s, self.said
            select.select([], [], [], 0.01)
            self.notices.run_commands(time.monotonic())


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.notices.close()


def crash(number: int = 1, evidence: str = "") -> Line:
    return Line(1.5, "trainer", number, Exited(pid=7, code=None, signal="SIGKILL", cause="killed", evidence=evidence))


def test_the_command_gets_the_event_as_json_and_its_name_in_the_environment(desk: Desk, tmp_path: Path) -> None:
    received = tmp_path / "heard"
    source = 'import os, sys; open(sys.argv[1], "w").write(os.environ["PROCSV_EVENT"] + " " + sys.stdin.read())'
    desk.command(source, received).offer_event(crash(evidence="an 'é' \ud800"), time.monotonic())
    desk.wait()

    name, _, text = received.read_text().partition(" ")
    assert name == "exited"
    assert json.loads(text)["cause"] == "killed"
    assert desk.said == []


def test_one_that_takes_too_long_is_killed_with_its_children_and_it_is_said_once(desk: Desk) -> None:
    source = 'import subprocess, sys; subprocess.run([sys.executable, "-c", "import signal; signal.pause()"])'
    notices = desk.command(source, time_s=1.0)
    notices.offer_event(crash(), time.monotonic())
    notices.offer_event(crash(2), time.monotonic())
    pids = notices.pids
    assert len(pids) == 2
    desk.wait()

    assert len(desk.said) == 1
    assert " 1 s" in desk.said[0]
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_one_that_fails_or_cannot_be_started_is_said_once_and_its_words_are_kept(desk: Desk, tmp_path: Path) -> None:
    notices = desk.command('print("no such host"); raise SystemExit(3)')
    for number in range(3):
        notices.offer_event(crash(number), time.monotonic())
    desk.wait()
    assert len(desk.said) == 1
    assert "failed (exit code 3)" in desk.said[0]
    assert "no such host" in desk.log.read_text()

    absent = EventHook(str(tmp_path / "absent"), desk.log, os.environ, desk.said.append, 1.0)
    absent.offer_event(crash(), time.monotonic())
    absent.offer_event(crash(), time.monotonic())
    assert "cannot be started" in desk.said[-1]
    assert len(desk.said) == 2


def test_what_commands_print_is_kept_in_two_parts_of_a_size(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_hook, "LOG_BYTES_MAX", 10)
    desk.command('print("0123456789")')
    for number in range(3):
        desk.notices.offer_event(crash(number), time.monotonic())
        desk.wait()
    assert [path.read_text() for path in (desk.log, desk.log.with_name("on-event.log.1"))] == ["0123456789\n"] * 2


def test_a_flood_of_events_neither_starts_many_nor_waits_without_end(desk: Desk) -> None:
    notices = desk.command("import signal; signal.pause()")
    for number in range(WAITING_MAX + 2 * RUNNING_MAX):
        notices.offer_event(crash(number), time.monotonic())

    assert len(notices.pids) == RUNNING_MAX
    assert any("oldest" in text for text in desk.said)


@pytest.mark.parametrize(
    ("event", "fields", "does"),
    [
        ("exited", {"cause": "killed"}, True),
        ("exited", {"cause": "hang"}, True),
        ("exited", {"cause": "completed"}, False),
        ("exited", {"cause": "stopped"}, False),
        ("exited", {"cause": "exit-code", "code": 75}, False),
        ("gave_up", {}, True),
        ("task_given_up", {}, True),
        ("run_completed", {}, True),
        ("checkpoint_failed", {}, True),
        ("preempt_notice", {}, True),
        ("hang_detected", {}, True),
        ("checkpoint_durable", {}, False),
        ("spawned", {}, False),
    ],
)
def test_people_hear_of_ends_and_of_what_went_wrong(event: str, fields: dict[str, Any], does: bool) -> None:
    assert concerns(an_entry(event, **fields)) is does
