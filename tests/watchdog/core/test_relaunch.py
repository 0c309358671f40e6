"""A launch resumes the run that it finds only if that is the run it asks for."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from procsv.watchdog.core.relaunch import Adopt, GoOn, NothingToDo, Refuse, RelaunchFacts, decide
from tests.support.naming import Naming


def found(**changes: Any) -> RelaunchFacts:
    known: dict[str, Any] = {
        "directory": "runs/train",
        "ran": "train.py 0.1",
        "asked": "train.py 0.1",
        "is_other": False,
        "names_logdir": False,
        "resumes": False,
        "holds_results": True,
        "is_complete": False,
        "at": "step 50",
        "ended": "2026-11-26 17:50:00",
        "changed": (),
    }
    return RelaunchFacts(**{**known, **changes})


OTHER = {"is_other": True, "asked": "train.py 0.01"}
COMPLETE = {"is_complete": True}
CHANGED = {"changed": ("model.py",), "listed": "model.py"}


def test_an_unfinished_run_resumes_silently_whatever_has_changed_in_its_files() -> None:
    assert decide(found()) == decide(found(**CHANGED)) == decide(found(changed=None)) == GoOn()


@pytest.mark.parametrize(
    "more", [{}, COMPLETE, {**COMPLETE, **CHANGED}, {"resumes": True}, {**COMPLETE, "resumes": True}]
)
def test_other_arguments_are_refused_with_both_command_lines_and_the_option_to_use(more: dict[str, Any]) -> None:
    refused = decide(found(**OTHER, **more))
    assert isinstance(refused, Refuse)
    for word in (
        "`train.py 0.1`",
        "`train.py 0.01`",
        "--new",
        "--logdir with another directory",
        "--logdir runs/train",
    ):
        assert word in refused.text


def test_other_arguments_continue_in_a_named_logdir_with_one_line_about_the_difference() -> None:
    verdict = decide(found(**OTHER, names_logdir=True))
    assert verdict == decide(found(**OTHER, **COMPLETE, names_logdir=True)), "a run that is trained for longer, say"
    assert isinstance(verdict, GoOn)
    assert verdict.has_other_args
    assert "`train.py 0.1`" in verdict.text
    assert "`train.py 0.01`" in verdict.text
    assert "\n" not in verdict.text


@pytest.mark.parametrize("names_logdir", [True, False])
def test_a_run_without_results_has_no_arguments_yet(names_logdir: bool) -> None:
    assert decide(found(**OTHER, holds_results=False, names_logdir=names_logdir)) == Adopt()


def test_a_complete_run_is_not_started_and_two_options_are_offered() -> None:
    told = decide(found(**COMPLETE))
    assert told == NothingToDo(Naming("nothing to do: ", " step 50 since 2026-11-26 17:50:00; ", "--new", "--resume"))
    assert isinstance(decide(found(**COMPLETE, names_logdir=True)), NothingToDo)
    assert decide(found(**COMPLETE, resumes=True)) == GoOn()


@pytest.mark.parametrize("more", [{}, {"names_logdir": True}, {**OTHER, "names_logdir": True}, {"is_on_disk": False}])
def test_a_complete_run_whose_program_has_changed_is_refused_and_the_files_are_named(more: dict[str, Any]) -> None:
    refused = decide(found(**COMPLETE, **CHANGED, **more))
    assert isinstance(refused, Refuse)
    for word in ("model.py", "--new", "--resume", "step 50", "2026-11-26"):
        assert word in refused.text
    assert not isinstance(decide(found(**COMPLETE, **CHANGED, **more, resumes=True)), Refuse)


@pytest.mark.parametrize("doubt", [{"changed": None}, {"is_on_disk": False}, {"is_complete": False}])
def test_a_program_is_started_unless_it_certainly_has_nothing_to_do(doubt: dict[str, Any]) -> None:
    assert decide(found(**{**COMPLETE, **doubt})) == GoOn()


def test_nothing_is_skipped_unless_everything_is_known_and_no_other_arguments_continue_unasked() -> None:
    names = ("is_other", "names_logdir", "resumes", "holds_results", "is_complete", "is_on_disk")
    for values in itertools.product((False, True), repeat=len(names)):
        for changed in ((), ("a.py",), None):
            case = found(**dict(zip(names, values, strict=True)), changed=changed)
            verdict = decide(case)
            if isinstance(verdict, NothingToDo):
                assert case.is_complete
                assert case.is_on_disk
                assert changed == ()
                assert not case.is_other
                assert not case.resumes
            if case.is_other and case.holds_results and not case.names_logdir:
                assert isinstance(verdict, Refuse)
            if isinstance(verdict, GoOn):
                assert verdict.has_other_args == case.is_other
