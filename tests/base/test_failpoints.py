"""A failpoint plan is parsed as fail-rs does, and each action does what it says to the process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procsv.base.system import failpoints
from procsv.base.system.failpoints import DECLARED, FailpointRaised, failpoint, parse
from tests.support.programs import ROOT, running


def set_plan(patch: pytest.MonkeyPatch, text: str) -> None:
    patch.setattr(failpoints, "_plan", parse(text))


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("a=kill", {"a": [(-1, "kill", "")]}),
        ("a=3*sleep(0.5)", {"a": [(3, "sleep", "0.5")]}),
        ("a=3*off->kill", {"a": [(3, "off", ""), (-1, "kill", "")]}),
        (" a.b = raise(3) ;; c=torn; ", {"a.b": [(-1, "raise", "3")], "c": [(-1, "torn", "")]}),
        ("a=0*kill", {"a": [(0, "kill", "")]}),
        ("", {}),
    ],
)
def test_a_plan_is_parsed_as_fail_rs_parses_it(text: str, tasks: dict[str, list[tuple[int, str, str]]]) -> None:
    read = {name: [(t.left, t.action, t.argument) for t in row] for name, row in parse(text).items()}
    assert read == tasks


@pytest.mark.parametrize(
    "text", ["a", "a=", "a=explode", "a=kill->", "a=50%kill", "a=*kill", "a=kill(", "a=-1*kill", "a=KILL"]
)
def test_an_error_in_a_plan_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="PROCSV_FAILPOINTS"):
        parse(text)


@given(st.text())
def test_any_text_is_a_plan_or_raises_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(parse(text), dict)


def test_an_unplanned_failpoint_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    set_plan(monkeypatch, "other=raise")
    assert failpoint("a") is False


def test_actions_run_in_order_and_as_often_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    set_plan(monkeypatch, "a=2*off->1*torn->1*raise(now)->2*torn")
    assert [failpoint("a"), failpoint("a"), failpoint("a")] == [False, False, True]
    with pytest.raises(FailpointRaised, match="a: now"):
        failpoint("a")
    assert [failpoint("a") for _ in range(4)] == [True, True, False, False]


@pytest.mark.parametrize(("action", "number"), [("eio", 5), ("enospc", 28), ("enolck", 37)])
def test_a_bad_disk_shows_the_errors_of_a_real_one(monkeypatch: pytest.MonkeyPatch, action: str, number: int) -> None:
    set_plan(monkeypatch, f"a={action}")
    with pytest.raises(OSError, match="'a'") as caught:
        failpoint("a")
    assert caught.value.errno == number


@pytest.mark.fault
def test_a_process_ends_as_its_failpoint_says() -> None:
    source = """
        from procsv.base.system.failpoints import failpoint
        for _ in range(3):
            print("passed")
            failpoint("a")
    """
    with running(source, failpoints="a=1*off->kill") as program:
        assert program.wait() == -signal.SIGKILL
        program.wait_said("passed", 2)


SAYS = """
    import threading
    from procsv.base.system.failpoints import failpoint
    print("before")
    failpoint("a")
    print("after")
"""


@pytest.mark.fault
@pytest.mark.parametrize("action", ["hang", "stop", "sleep(1000)", "await(/nowhere)"])
def test_a_process_hangs_as_its_failpoint_says(action: str) -> None:
    with running(SAYS, failpoints=f"a={action}") as program:
        program.wait_said("before")
        program.kill()
        assert program.said == ["before"]


@pytest.mark.fault
def test_a_thread_that_stops_its_process_does_nothing_more_until_it_is_woken(tmp_path: Path) -> None:
    source = """
        import os, sys, threading
        from procsv.base.system.failpoints import failpoint
        def work():
            file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
            while True:
                failpoint("a")
                os.write(file, b".")
        threading.Thread(target=work).start()
        threading.Event().wait()
    """
    done = tmp_path / "done"
    with running(source, str(done), failpoints="a=stop") as program:
        for rounds in range(10):
            assert os.WIFSTOPPED(os.waitpid(program.pid, os.WUNTRACED)[1])
            assert done.stat().st_size == rounds
            os.kill(program.pid, signal.SIGCONT)


@pytest.mark.fault
def test_a_process_that_waits_for_a_file_continues_once_it_exists(tmp_path: Path) -> None:
    with running(SAYS, failpoints=f"a=await({tmp_path}/go)") as program:
        program.wait_said("before")
        (tmp_path / "go").touch()
        program.wait_said("after")


@pytest.mark.fault
def test_a_wrong_plan_ends_the_process_at_once() -> None:
    with running("import procsv.base.system.failpoints", failpoints="a=explode") as program:
        assert program.wait() == 1


def test_every_declared_failpoint_is_used_and_every_used_one_is_declared() -> None:
    declared: set[str] = set()
    used: set[str] = set()
    for folder in ("ipc", "services", "procsv"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            if path.name == "failpoints.py":
                continue
            for call in re.findall(r"\bdeclare\(([^)]*)\)", text):
                declared |= set(re.findall(r'"([^"]+)"', call))
            used |= set(re.findall(r'\bfailpoint\(\s*f?"([^"]+)"', text))
    assert declared == used
    assert declared >= DECLARED
