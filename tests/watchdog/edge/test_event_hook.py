"""--on-event runs real commands on events and protects the run from them."""

from __future__ import annotations

import http.server
import json
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from procsv.base.encoding import decode_json
from procsv.base.journal.entries import Exited
from procsv.base.journal.line import Line
from procsv.watchdog.edge import event_hook
from procsv.watchdog.edge.event_hook import RUNNING_MAX, WAITING_MAX, EventHook, Hook, concerns, describe
from tests.support.journal import an_entry

pytestmark = pytest.mark.fault
NEWS_S_MAX = 300.0
ABOUT = {"target": "train.py", "host": "n1", "logdir": "/runs/mine"}


class Desk:
    def __init__(self, tmp_path: Path) -> None:
        self.log, self.said = tmp_path / "on-event.log", list[str]()
        self.notices: EventHook

    def command(self, source: str, *args: object, time_s: float = 30.0) -> EventHook:
        return self.hook(Hook("a command", (sys.executable, "-c", source, *map(str, args))), time_s=time_s)

    def hook(self, *hooks: Hook, time_s: float = 30.0) -> EventHook:
        self.notices = EventHook(hooks, ABOUT, self.log, os.environ, self.said.append, time_s)
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
    told = decode_json(text.encode(), dict[str, Any])
    assert told["cause"] == "killed"
    assert told["text"] == describe(crash(evidence="an 'é' \ud800"))
    assert told.items() >= ABOUT.items()
    assert desk.said == []


def test_a_slow_command_is_killed_with_its_children_and_reported_once(desk: Desk) -> None:
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


def test_a_command_that_fails_or_cannot_start_is_reported_once_and_its_output_is_kept(
    desk: Desk, tmp_path: Path
) -> None:
    notices = desk.command('print("no such host"); raise SystemExit(3)')
    for number in range(3):
        notices.offer_event(crash(number), time.monotonic())
    desk.wait()
    assert len(desk.said) == 1
    assert "failed (exit code 3)" in desk.said[0]
    assert "no such host" in desk.log.read_text()

    absent = desk.hook(Hook("absent", (str(tmp_path / "absent"),)))
    absent.offer_event(crash(), time.monotonic())
    absent.offer_event(crash(), time.monotonic())
    assert "cannot be started" in desk.said[-1]
    assert len(desk.said) == 2


def test_command_output_is_kept_in_two_parts_of_limited_size(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_hook, "LOG_BYTES_MAX", 10)
    desk.command('print("0123456789")')
    for number in range(3):
        desk.notices.offer_event(crash(number), time.monotonic())
        desk.wait()
    assert [path.read_text() for path in (desk.log, desk.log.with_name("on-event.log.1"))] == ["0123456789\n"] * 2


def test_a_flood_of_events_starts_few_commands_and_does_not_wait_without_end(desk: Desk) -> None:
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
        ("run_started", {"seen_until": None}, False),
        ("run_started", {"seen_until": 12.5}, True),
    ],
)
def test_people_are_notified_of_ends_and_errors(event: str, fields: dict[str, Any], does: bool) -> None:
    assert concerns(an_entry(event, **fields)) is does


@pytest.fixture
def webhook() -> Iterator[tuple[str, queue.Queue[dict[str, Any]]]]:
    """A server that accepts posts: its URL in Apprise's form, and what it received."""
    come: queue.Queue[dict[str, Any]] = queue.Queue()

    class Posted(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            come.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Posted) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"json://user:secret@127.0.0.1:{server.server_port}/", come
        server.shutdown()
        thread.join()


def test_a_web_hook_reports_a_crash_in_one_sentence(
    desk: Desk, webhook: tuple[str, queue.Queue[dict[str, Any]]]
) -> None:
    url, come = webhook
    argv = (sys.executable, "-P", "-m", "procsv.cli.notify")
    desk.hook(Hook("--notify", argv, url)).offer_event(crash(evidence="SIGKILL"), time.monotonic())
    told = come.get(timeout=NEWS_S_MAX)
    desk.wait()
    assert desk.said == [], desk.log.read_text()
    assert ("train.py" in told["title"], "n1" in told["title"]) == (True, True)
    assert describe(crash(evidence="SIGKILL")) in told["message"]
    assert "/runs/mine" in told["message"]


def test_a_failed_notification_is_reported_without_the_password(desk: Desk) -> None:
    argv = (sys.executable, "-P", "-m", "procsv.cli.notify")
    desk.hook(Hook("--notify", argv, "json://user:secret@127.0.0.1:1/")).offer_event(crash(), time.monotonic())
    desk.wait()
    assert len(desk.said) == 1
    assert "secret" not in desk.said[0] + desk.log.read_text()
