"""A pytest plugin: several tests at a time, in forks of a session that has collected them once.

    python -m pytest -p tests.support.workers --workers 5

The tests of a file run in one worker, in their order; the files are taken in order, those with marked tests (slow, fault) first, so that
none of these is left to one worker at the end.  What is printed, counted and written is as
without: workers send their reports to the session, which passes them to pytest.  A worker that dies fails the test that it was in,
and another takes its place.  Not imported by any test.  The worker's own side is worker.py.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import signal
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from procsv.testing.run import environment
from procsv.testing.template.client import SESSION
from procsv.training.process.fork import Threads, settle_memory, why_no_fork
from tests.support.worker import Broken, Done, Interrupted, Left, Order, serve

LONG = ("slow", "fault")  # markers
_threads, _watching = Threads(), contextlib.ExitStack()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, help="run so many tests at a time, in forks of this process")


def pytest_load_initial_conftests() -> None:
    """What tests import from now on is not to start threads that a fork would not have."""
    _watching.enter_context(_threads.watching())


def pytest_unconfigure() -> None:
    _watching.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    _watching.close()
    options = session.config.option
    if not options.workers or options.collectonly or session.testsfailed:
        return None
    if why := why_no_fork(_threads):
        raise pytest.UsageError(f"--workers needs forks, but the tests break them when they are collected: {why}")
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    reporter.showfspath = False  # tests of several files come one after the other
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # each worker has a directory in it
    SESSION.start(environment({}))
    settle_memory()
    Workers(session).run(options.workers)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


class Worker:
    """One of the forks, as the session sees it.  Tests are numbered as they were collected."""

    def __init__(self, session: pytest.Session, name: str, others: Iterable[Worker]) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self.name, self.tests, self.running = name, deque[int](), -1
        self.line, theirs = multiprocessing.connection.Pipe()
        self.pid = os.fork()
        if not self.pid:
            for line in (self.line, *(other.line for other in others)):
                line.close()
            serve(session, theirs, name)
        theirs.close()
        self.pidfd = os.pidfd_open(self.pid)

    def give(self) -> None:
        """Its next test, or the word that there is none."""
        self.running = self.tests.popleft() if self.tests else -1
        order = Order(self.running, self.tests[0] if self.tests else -1)
        with contextlib.suppress(OSError):  # it has died, which is heard of next
            self.line.send(order)

    def wait(self) -> int:
        """How it has ended, as subprocess says it."""
        self.line.close()
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        return os.waitstatus_to_exitcode(status)


class Workers:
    """Those of a session, and the files that none of them has begun."""

    def __init__(self, session: pytest.Session) -> None:
        self._session, self._hook = session, session.config.hook
        files: dict[str, deque[int]] = {}
        long = set[str]()
        for number, item in enumerate(session.items):
            file = item.nodeid.partition("::")[0]
            files.setdefault(file, deque()).append(number)
            if any(item.get_closest_marker(name) for name in LONG):
                long.add(file)
        self._files = deque(files[file] for file in sorted(files, key=lambda file: file not in long))
        self._alive: list[Worker] = []
        self._count = 0

    def run(self, count: int) -> None:
        """Until all tests are done, or pytest wants no more of them."""
        try:
            for _ in range(min(count, len(self._files))):
                self._begin()
            while self._alive:
                for worker in self._with_news():
                    self._hear(worker)
        finally:
            self._interrupt()

    def _begin(self) -> None:
        self._count += 1
        worker = Worker(self._session, f"worker-{self._count}", self._alive)
        self._alive.append(worker)
        self._go_on(worker)

    def _go_on(self, worker: Worker) -> None:
        """A file is begun by who has none; those who would stop get no further test."""
        if self._session.shouldfail or self._session.shouldstop:
            self._files.clear()
            worker.tests.clear()
        if not worker.tests and self._files:
            worker.tests = self._files.popleft()
        worker.give()

    def _with_news(self) -> Iterator[Worker]:
        ready = multiprocessing.connection.wait(
            [*(one.line for one in self._alive), *(one.pidfd for one in self._alive)]
        )
        return (one for one in [*self._alive] if one.line in ready or one.pidfd in ready)

    def _hear(self, worker: Worker) -> None:
        try:  # a process that outlives a worker may hold its end of the line
            told = worker.line.recv() if worker.line.poll() else None
        except (EOFError, OSError):
            told = None
        match told:
            case None:
                self._bury(worker)
            case Done():
                self._publish(worker.running, told)
                self._go_on(worker)
            case Interrupted():
                raise KeyboardInterrupt
            case Left(reason, code):
                pytest.exit(reason, code)
            case Broken(text):
                raise RuntimeError(f"{worker.name}: {text}")

    def _publish(self, number: int, told: Done) -> None:
        """To pytest, as if the test had run here."""
        item = self._session.items[number]
        self._hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for warning in told.warnings:
            self._hook.pytest_warning_recorded.call_historic(kwargs=warning.arguments())
        for data in told.reports:
            report = self._hook.pytest_report_from_serializable(config=self._session.config, data=data)
            self._hook.pytest_runtest_logreport(report=report)
        self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _bury(self, worker: Worker) -> None:
        """It has ended: as it was told to, or within a test."""
        self._alive.remove(worker)
        code = worker.wait()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        if worker.running < 0:
            if code:
                raise RuntimeError(f"{worker.name} has ended {how} after its last test")
            return
        item = self._session.items[worker.running]
        text = f"{worker.name} has ended {how} within this test"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
        self._publish(
            worker.running,
            Done([self._hook.pytest_report_to_serializable(config=self._session.config, report=report)], []),
        )
        if worker.tests:
            self._files.appendleft(worker.tests)
        self._begin()

    def _interrupt(self) -> None:
        """Those that still run end, and take down what their tests have set up; whoever is impatient interrupts once more."""
        try:
            for worker in self._alive:
                signal.pidfd_send_signal(worker.pidfd, signal.SIGINT)
            for worker in self._alive:
                worker.wait()
        except KeyboardInterrupt:
            for worker in self._alive:
                signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)
            raise
