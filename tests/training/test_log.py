"""procsv's name appears once in its log lines, whatever logging the program configures."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from procsv.training.runtime.log import log


@pytest.mark.parametrize(
    ("formatter", "line"),
    [
        (logging.Formatter(logging.BASIC_FORMAT), "WARNING:procsv:slot 1 is gone"),
        (logging.Formatter("{name} {message}", style="{"), "procsv slot 1 is gone"),
        (logging.Formatter("${name} ${message}", style="$"), "procsv slot 1 is gone"),
        (logging.Formatter("%(levelname)s %(message)s"), "WARNING procsv: slot 1 is gone"),
        (None, "procsv: slot 1 is gone"),
    ],
    ids=["basicConfig", "braces", "dollars", "without names", "none"],
)
def test_the_name_appears_once_in_a_line(
    formatter: logging.Formatter | None, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    top = logging.Logger("top")
    top.addHandler(handler)
    monkeypatch.setattr(log, "parent", top)
    monkeypatch.setattr(log, "handlers", [])
    log.warning("procsv: slot %d is gone", 1)
    assert stream.getvalue() == f"{line}\n"


class Failing(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("not in this thread")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("handler", [Failing(), logging.StreamHandler(closed())], ids=["failing", "closed"])
def test_a_line_that_the_programs_handler_refuses_is_printed_all_the_same(
    handler: logging.Handler, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    top = logging.Logger("top")
    top.addHandler(handler)
    monkeypatch.setattr(log, "parent", top)
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(sys, "stderr", closed())
    log.warning("procsv: slot %d is gone", 1)
    assert capfd.readouterr().err == "procsv: slot 1 is gone\n"
