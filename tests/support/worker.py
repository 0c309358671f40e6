"""One of the forks of a test session that run its tests: what it does, and what it says.  Used by workers.py, within the fork."""

from __future__ import annotations

import multiprocessing.connection
import os
import sys
import traceback
import warnings
from typing import Any, NamedTuple, NoReturn

import pytest

from procsv.testing.template.client import SESSION
from procsv.training.process.fork import renew_randomness


class Order(NamedTuple):
    """To a worker: run this test; -1: end.  `following`: the next one of the same file, or -1."""

    number: int
    following: int


class Warned(NamedTuple):
    """A warning that a test has given: its class need not be known to the session."""

    text: str
    category: str
    filename: str
    lineno: int
    when: str
    nodeid: str
    location: tuple[str, int, str] | None

    def arguments(self) -> dict[str, Any]:
        """Those of pytest's hook."""
        category = type(self.category, (Warning,), {})
        message = warnings.WarningMessage(category(self.text), category, self.filename, self.lineno)
        return {"warning_message": message, "when": self.when, "nodeid": self.nodeid, "location": self.location}


class Done(NamedTuple):
    """From a worker: a test is over."""

    reports: list[dict[str, Any]]
    warnings: list[Warned]


class Interrupted(NamedTuple):
    """From a worker: as by Ctrl-C."""


class Left(NamedTuple):
    """From a worker: a test has called pytest.exit."""

    reason: str
    code: int | None


class Broken(NamedTuple):
    """From a worker: an exception that is no test's."""

    text: str


Line = multiprocessing.connection.Connection


def serve(session: pytest.Session, line: Line, name: str) -> NoReturn:
    """Runs what it is told to, and ends the process."""
    code = 1
    try:
        told = _work(session, line, name)
        if told is not None:
            line.send(told)
        code = 0
    except (OSError, EOFError):
        code = 1  # the session has gone
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _work(session: pytest.Session, line: Line, name: str) -> Interrupted | Left | Broken | None:
    try:
        _Worker(session, line, name).run()
    except KeyboardInterrupt:
        return Interrupted()
    except pytest.exit.Exception as ending:
        return Left(str(ending.msg), ending.returncode)
    except Exception:  # noqa: BLE001  whatever it is, the session says it
        return Broken(traceback.format_exc())
    return None


class _Worker:
    def __init__(self, session: pytest.Session, line: Line, name: str) -> None:
        self._session, self._config, self._line = session, session.config, line
        self._done = Done([], [])
        os.setpgid(0, 0)  # Ctrl-C is for the session, which passes it on
        renew_randomness()
        SESSION.enter_fork()
        self._become_another(name)

    def _become_another(self, name: str) -> None:
        """Gets what only one process may have: files of captured output, a directory; and prints nothing itself."""
        plugins: Any = self._config.pluginmanager
        capture, places = plugins.get_plugin("capturemanager"), plugins.get_plugin("tmpdir")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
        self._config.option.basetemp = str(self._config._tmp_path_factory.getbasetemp() / name)  # type: ignore[attr-defined]
        places.pytest_configure(self._config)
        plugins.unregister(name="terminalreporter")
        plugins.register(self)

    def run(self) -> None:
        """Until there is no test left, or one is interrupted; then what the tests share is taken down."""
        items, hook = self._session.items, self._config.hook
        try:
            while (order := self._line.recv()).number >= 0:
                # The session itself for none: of what a file has set up nothing stays, of the session's all.
                following = items[order.following] if order.following >= 0 else self._session
                hook.pytest_runtest_protocol(item=items[order.number], nextitem=following)
                self._line.send(self._done)
                self._done = Done([], [])
        finally:
            self._session._setupstate.teardown_exact(None)
            self._config._ensure_unconfigure()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._done.reports.append(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        text, category = str(warning_message.message), warning_message.category.__name__
        filename, lineno = warning_message.filename, warning_message.lineno
        self._done.warnings.append(Warned(text, category, filename, lineno, when, nodeid, location))
