"""A training process's link polls its sockets rarely and hears every message."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import queue
import resource
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from procsv.base.identity import TRAINER, WATCHDOG
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.messages import Hello
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.watchdog_messages import StopTraining
from procsv.ipc.messaging.zmq_transport import Client, Server, Waiter, new_context
from procsv.training.runtime import link as link_module
from procsv.training.runtime.event_streams import EventStreams
from procsv.training.runtime.link import Link
from procsv.training.runtime.run_connection import RunConnection

WAIT_S = float(os.environ.get("PROCSV_TEST_DEADLINE", "60"))
TICKS = 10


@pytest.fixture
def start(tmp_path: Path) -> Start:
    here, settings = str(tmp_path), LaunchSettings(grace_s=5.0)
    return Start(TRAINER, secrets.token_hex(8), 1, here, here, here, lifeline_fd=-1, settings=settings)


@pytest.fixture
def make_watchdog(start: Start) -> Iterator[Callable[[], Server]]:
    context, made = new_context(), list[Server]()

    def make() -> Server:
        server = Server(context, start.paths.control_socket, Address(start.run, WATCHDOG, 1), SystemClock())
        made.append(server)
        return server

    yield make
    for server in made:
        server.close()
    context.term()


def hear(server: Server, kind: type[Message]) -> bytes:
    """Wait for a message of this kind. Return its sender."""
    waiter, clock = Waiter(), SystemClock()
    waiter.register(server)
    deadline_s = clock.monotonic() + WAIT_S
    while clock.monotonic() < deadline_s:
        waiter.wait(0.05)
        server.resend_due()
        if (received := server.receive()) is not None:
            server.acknowledge(received)
            if isinstance(received.body, kind):
                return received.who
    raise AssertionError(f"{kind.__name__} did not come")


def test_a_link_without_news_leaves_its_sockets_alone_and_hears_the_next_message_and_the_next_watchdog(
    start: Start, make_watchdog: Callable[[], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "TICK_S", 0.02)
    calls, ticks, told = Counter[str](), queue.SimpleQueue[int](), queue.SimpleQueue[Message]()
    for name in ("_take", "_new_connections"):
        real: Any = getattr(Client, name)

        def counted(client: Client, name: str = name, real: Any = real) -> Any:
            calls[name] += 1
            return real(client)

        monkeypatch.setattr(Client, name, counted)
    link = Link(start, SystemClock(), EventStreams(), (WATCHDOG,))
    link.on(StopTraining, told.put)
    link.on_tick.append(lambda _: ticks.put(sum(calls.values())))
    first = make_watchdog()
    link.start_thread()
    try:
        trainer = hear(first, Hello)
        counts = [ticks.get(timeout=WAIT_S)]
        while len(counts) <= TICKS or counts[-1] != counts[-TICKS]:
            counts.append(ticks.get(timeout=WAIT_S))
            assert len(counts) < WAIT_S / 0.02, "it goes on asking"

        first.send_reliable(trainer, StopTraining(1.0, "preempt"))
        assert told.get(timeout=WAIT_S) == StopTraining(1.0, "preempt")

        first.close()
        hear(make_watchdog(), Hello)
    finally:
        link.close_link(0.0)


def test_what_the_machine_refuses_at_a_tick_is_tried_again_and_ends_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "TICK_S", 0.02)
    link, tries = Link(start, SystemClock(), EventStreams(), (WATCHDOG,)), queue.SimpleQueue[float]()

    def refused(now_s: float) -> None:
        tries.put(now_s)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    link.on_tick.append(refused)
    link.start_thread()
    try:
        for _ in range(3):
            tries.get(timeout=WAIT_S)
    finally:
        link.close_link(0.0)


def test_an_error_of_one_call_ends_neither_the_thread_nor_the_other_calls(
    start: Start,
    make_watchdog: Callable[[], Server],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(link_module, "TICK_S", 0.02)
    link, told = Link(start, SystemClock(), EventStreams(), (WATCHDOG,)), queue.SimpleQueue[object]()
    stop = StopTraining(1.0, "preempt")

    def fail(_: object) -> None:
        raise ValueError("by a handler of the program's logging")

    link.on_tick += [fail, told.put]
    link.on(StopTraining, fail)
    link.on(StopTraining, told.put)
    watchdog = make_watchdog()
    link.start_thread()
    try:
        watchdog.send_reliable(hear(watchdog, Hello), stop)
        while told.get(timeout=WAIT_S) != stop:
            pass
        told.get(timeout=WAIT_S)
    finally:
        link.close_link(0.0)
    assert capfd.readouterr().err.count("ValueError: by a handler") == 2


def test_two_threads_may_start_it_at_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = RunConnection(start.paths, (WATCHDOG,), start, SystemClock())
    connection.open_link(link := Link(start, SystemClock(), EventStreams(), (WATCHDOG,)))
    begin, is_starting, go = link._thread.start, threading.Event(), threading.Event()

    def begin_slowly() -> None:
        is_starting.set()
        go.wait(WAIT_S)
        begin()

    monkeypatch.setattr(link._thread, "start", begin_slowly)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(connection.start_link)
        assert is_starting.wait(WAIT_S)
        second = threads.submit(connection.start_link)
        go.set()
        assert (first.result(WAIT_S), second.result(WAIT_S)) == (None, None)
    link.close_link(0.0)


def test_a_thread_that_wakes_it_while_it_is_closed_writes_to_no_other_file(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, write = Link(start, SystemClock(), EventStreams(), ()), os.eventfd_write
    own = [tmp_path / f"own.{number}" for number in range(50)]
    with contextlib.ExitStack() as files:

        def close_meanwhile(fd: int, count: int) -> None:
            monkeypatch.setattr(os, "eventfd_write", write)
            link.close_link(0.0)
            for path in own:
                files.enter_context(path.open("wb"))
            write(fd, count)

        monkeypatch.setattr(os, "eventfd_write", close_meanwhile)
        with contextlib.suppress(OSError):
            link.wake()
    assert not [path for path in own if path.stat().st_size]


def test_a_descriptor_beyond_the_first_thousand_is_watched_like_any_other(start: Start) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(2048, limits[0]), limits[1]))
    link, told = Link(start, SystemClock(), EventStreams(), ()), queue.SimpleQueue[bytes]()
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, 1024)
    try:
        link.watch_fd(high, lambda: told.put(os.read(high, 1)))
        link.start_thread()
        os.write(writer, b"x")
        assert told.get(timeout=WAIT_S) == b"x"
    finally:
        link.close_link(0.0)
        for fd in (reader, writer, high):
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
