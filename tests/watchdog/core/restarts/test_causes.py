"""Each end has a cause, a class and a name that follow from the evidence."""

from __future__ import annotations

import pytest

from procsv.base.outcome import Exit, LastWords
from procsv.watchdog.core.restarts.causes import Cause, CauseKind, blame_plan, classify, find_cause, name_failure
from tests.support.naming import Naming


@pytest.mark.parametrize(
    ("exit", "kind"),
    [
        (Exit(0, None), CauseKind.DONE),
        (Exit(75, None), CauseKind.CHECKPOINTED),
        (Exit(78, None), CauseKind.PERMANENT),
        (Exit(126, None), CauseKind.PERMANENT),
        (Exit(127, None), CauseKind.PERMANENT),
        (Exit(1, None), CauseKind.FAILURE),
        (Exit(None, 9), CauseKind.FAILURE),
    ],
)
def test_exits_have_classes(exit: Exit, kind: CauseKind) -> None:
    assert classify(exit) is kind


BOOM = LastWords("ValueError", "boom\nmore", "Traceback", 10)
IN_GRAPH = """Graph execution error:

Detected at node 'embed' defined at (most recent call last):
Node: 'embed'
indices[6,1] = 7 is not in [0, 5)
\t [[{{node embed}}]]

Original stack trace for 'embed':
"""
OF_GRAPH = LastWords("InvalidArgumentError", IN_GRAPH, "Traceback", 10)


def test_a_death_that_a_planned_fault_explains_is_attributed_to_it() -> None:
    fault = "kill trainer at step 50"
    killed, crashed = Cause("killed", "SIGKILL, sender unknown"), Cause("crashed", "SIGSEGV in train.py:3")

    assert blame_plan(killed, Exit(None, 9), fault) == Cause("killed", Naming(f"({fault})", "SIGKILL"))
    assert blame_plan(crashed, Exit(None, 11), "x").evidence == Naming("SIGSEGV in train.py:3, ", "(x)")
    assert blame_plan(Cause("exit-code", "exit code 3"), Exit(3, None), "x").evidence == Naming("exit code 3, ", "(x)")
    assert blame_plan(killed, Exit(None, 9), "") == killed
    assert blame_plan(Cause("oom", "the kernel"), Exit(None, 9), fault) == Cause("oom", "the kernel")


@pytest.mark.parametrize(
    ("exit", "words", "stopping", "ours", "cause", "evidence"),
    [
        (Exit(0, None), None, False, "", "completed", "exit code 0"),
        (Exit(1, None), BOOM, False, "", "exception", "ValueError: boom"),
        (Exit(1, None), BOOM, True, "", "exception", "ValueError: boom"),
        (Exit(1, None), OF_GRAPH, False, "", "exception", "InvalidArgumentError: indices[6,1] = 7 is not in [0, 5)"),
        (Exit(3, None), None, False, "", "exit-code", "exit code 3"),
        (Exit(75, None), None, False, "", "exit-code", "exit code 75: the program"),
        (Exit(75, None), None, True, "", "stopped", "asked to stop"),
        (Exit(0, None), None, True, "", "stopped", "asked to stop"),
        (Exit(None, 15), None, True, "", "stopped", "SIGTERM"),
        (Exit(None, 15), None, False, "", "killed", "SIGTERM, sender unknown"),
        (Exit(None, 9), None, False, "", "killed", "SIGKILL, sender unknown"),
        (Exit(None, 9), None, True, "", "killed", "SIGKILL, sender unknown"),
        (Exit(None, 9), None, True, "too slow", "stopped", "SIGKILL, sent by procsv: too slow"),
        (Exit(None, 11), None, False, "", "crashed", "SIGSEGV"),
        (Exit(None, 6), None, False, "", "crashed", "SIGABRT"),
        (Exit(None, 7), None, False, "", "crashed", "SIGBUS"),
        (Exit(None, 11), None, True, "", "crashed", "SIGSEGV"),
        (Exit(None, None), None, False, "", "unknown", "unknown exit"),
        (Exit(0, None), BOOM, False, "", "completed", "exit code 0"),
        (Exit(75, None), BOOM, False, "", "exit-code", "exit code 75: the program"),
        (Exit(None, 11), BOOM, False, "", "crashed", "SIGSEGV"),
        (Exit(1, None), LastWords("", "boom"), False, "", "exit-code", "exit code 1"),
        (Exit(1, None), LastWords("E", 301 * "a"), False, "", "exception", "E: " + 300 * "a"),
        (Exit(1, None), LastWords("E", ""), False, "", "exception", "E"),
        (Exit(3, None), None, True, "", "exit-code", "exit code 3"),
        (Exit(78, None), None, False, "", "exit-code", "configuration error, says the program"),
        (Exit(None, 15), None, False, "too slow", "killed", "SIGTERM, sender unknown"),
    ],
)
def test_the_cause_is_what_the_evidence_shows(
    exit: Exit, words: LastWords | None, stopping: bool, ours: str, cause: str, evidence: str
) -> None:
    found = find_cause(exit, words, stopping, ours)

    assert found.word == cause
    assert evidence in found.evidence
    assert len(found.evidence) < len(evidence) + 40 if cause != "exception" else found.evidence == evidence


def test_a_fatal_signal_has_a_place_and_a_kill_has_none() -> None:
    where = "step (/home/me/train.py:3)"

    assert find_cause(Exit(None, 11), None, False, "", where=where) == Cause("crashed", f"SIGSEGV in {where}")
    assert find_cause(Exit(None, None), None, False, "", where=where) == Cause("crashed", Naming(f" in {where}"))
    assert find_cause(Exit(None, 15), None, False, "", where=where) == Cause("killed", "SIGTERM, sender unknown")
    assert find_cause(Exit(None, 6), None, False, "", hang="it hung", where=where) == Cause("hang", "it hung")


def test_only_a_sigkill_can_come_from_the_kernel() -> None:
    assert find_cause(Exit(None, 15), None, False, "", oom="oom_kill 0 -> 1").word == "killed"


RAISED = 'Traceback …\n  File "/home/me/train.py", line 3, in step\nValueError: boom\n'


@pytest.mark.parametrize(
    ("cause", "exit", "words", "hang", "name"),
    [
        (Cause("stopped", "SIGTERM"), Exit(None, 15), None, "", ""),
        (Cause("killed", "SIGKILL, sender unknown"), Exit(None, 9), None, "", ""),
        (Cause("hang", "no step for 60 s"), Exit(None, 6), None, "hung in step", "hung in step"),
        (Cause("oom", "oom_kill 0 -> 1"), Exit(None, 9), None, "", Naming("SIGKILL", "memory")),
        (Cause("exception", "ValueError: boom 17"), Exit(1, None), LastWords("ValueError", "17"), "", "ValueError"),
        (Cause("exit-code", "exit code 3, by the plan"), Exit(3, None), None, "", "exit code 3"),
        (Cause("crashed", "SIGSEGV in step"), Exit(None, 11), None, "", "SIGSEGV in step"),
        (Cause("crashed", "SIGSEGV in step"), Exit(None, 11), BOOM, "", "SIGSEGV in step"),
    ],
)
def test_the_same_failure_has_the_same_name_and_an_external_one_has_none(
    cause: Cause, exit: Exit, words: LastWords | None, hang: str, name: str
) -> None:
    assert name_failure(cause, exit, words, hang) == name


def test_an_exception_is_named_with_the_place_that_raised_it() -> None:
    words = LastWords("ValueError", "boom 17", RAISED)
    name = name_failure(Cause("exception", "ValueError: boom 17"), Exit(1, None), words, "")

    assert name.startswith("ValueError in ")
    assert "train.py" in name


def test_row_13_without_evidence_a_kill_has_an_unknown_sender() -> None:
    told = "(oom_kill 0 -> 1 in /sys/fs/cgroup/memory.events)"

    assert find_cause(Exit(None, 9), None, False, "", oom=told).word == "oom"
    assert "oom_kill 0 -> 1" in find_cause(Exit(None, 9), None, False, "", oom=told).evidence
    assert find_cause(Exit(None, 9), None, False, "").evidence == "SIGKILL, sender unknown"
    assert find_cause(Exit(1, None), BOOM, False, "", oom=told).word == "exception"
