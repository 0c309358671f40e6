"""A drill passes only if the program survived with the same variables and whole summaries."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from procsv.base.errors import UserError
from procsv.base.journal.line import Line
from procsv.drill.findings import Findings, Trial, find_missing_tags, find_outcomes, judge_findings
from procsv.drill.format import show_findings
from procsv.drill.runner import as_toml, default_plan
from procsv.faults.plan import Plan
from procsv.faults.plan_parser import parse_fault, parse_plan
from procsv.report.account import Account
from procsv.report.time_ledger import take_accounts
from tests.report.journals import at

SAME = {"is_identical": True, "is_close": True, "variables": 3, "different": [], "different_count": 0}
OTHER: dict[str, Any] = {
    "is_identical": False,
    "is_close": True,
    "variables": 3,
    "different_count": 1,
    "different": [{"name": "w", "max_abs": 1e-7, "max_rel": 1e-6, "elements": 4, "is_close": False}],
    "only_in_first": [],
    "only_in_second": [],
}
WHOLE: dict[str, Any] = {"files": 1, "records": 2, "tags": ["loss"], "problems": [], "missing_tags": []}


def _account() -> Account:
    """Return an account of a trainer killed at step 50 and a service killed at step 70."""
    entries = [
        at(0, "run_started", "watchdog"),
        at(0, "spawned", "trainer", pid=1),
        at(5, "ready", "trainer", step=1),
        at(5, "recovered", "trainer", step=0, source="fresh", seconds=5.0),
        at(20, "fault", "trainer", fault="kill trainer at step 50", step=50),
        at(20, "exited", "trainer", code=None, signal="SIGKILL", cause="killed", evidence="", step=50),
        at(21, "spawned", "trainer", 2, pid=2),
        at(26, "ready", "trainer", 2, step=47),
        at(26, "recovered", "trainer", 2, step=46, source="memory", seconds=6.0),
        at(30, "fault", "checkpoint", fault="kill checkpoint at step 70", step=70),
        at(40, "exited", "trainer", 2, code=0, signal=None, cause="completed", evidence="", step=100),
        at(41, "run_completed", "trainer", 2, step=100, goodput=0.5),
    ]
    account, _ = take_accounts(entries)
    assert account is not None
    return account


def _findings(**changes: Any) -> Findings:
    trial = Trial("logdir", (0,), _account(), "")
    faults = tuple(parse_fault(text) for text in ("kill trainer at step 50", "kill checkpoint at step 70"))
    outcomes, missed = find_outcomes(trial.account, faults)
    settings: dict[str, Any] = {"comparison": SAME, "continuity": WHOLE, "rtol": 0.0, "drilled": trial} | changes
    found = Findings(
        trial, settings["drilled"], outcomes, missed, settings["comparison"], settings["continuity"], settings["rtol"]
    )
    found.is_deterministic, found.again = changes.get("is_deterministic"), changes.get("again")
    judge_findings(found)
    return found


def test_a_drill_that_ends_the_same_passes() -> None:
    found = _findings()
    assert found.passed
    assert found.variables == "identical"


def test_each_fault_is_reported_with_its_cost() -> None:
    killed, service = _findings().outcomes
    assert (killed.ended_task, killed.lost_steps, killed.down_s, killed.source) == (True, 4, 6.0, "memory")
    assert (service.ended_task, service.lost_steps, service.down_s) == (False, 0, 0.0)


def test_a_trainer_dies_of_the_fault_aimed_at_it_though_another_came_before_it_was_gone() -> None:
    entries = [
        at(0, "run_started", "watchdog"),
        at(0, "spawned", "trainer", pid=1),
        at(5, "ready", "trainer", step=1),
        at(20, "fault", "trainer", fault="raise trainer at step 50", step=50),
        at(21, "fault", "checkpoint", fault="kill checkpoint at step 40", step=50),
        at(23, "exited", "trainer", code=1, signal=None, cause="exception", evidence="", step=50),
        at(24, "spawned", "trainer", 2, pid=2),
        at(29, "ready", "trainer", 2, step=51),
        at(29, "recovered", "trainer", 2, step=50, source="memory", seconds=6.0),
        at(40, "exited", "trainer", 2, code=0, signal=None, cause="completed", evidence="", step=100),
        at(41, "run_completed", "trainer", 2, step=100, goodput=0.5),
    ]
    account, _ = take_accounts(entries)
    assert account is not None
    faults = tuple(parse_fault(text) for text in ("raise trainer at step 50", "kill checkpoint at step 40"))
    (raised, killed), _ = find_outcomes(account, faults)
    assert (raised.ended_task, raised.down_s, raised.source) == (True, 6.0, "memory")
    assert (killed.ended_task, killed.down_s) == (False, 0.0)


def test_a_fault_that_never_happened_is_named() -> None:
    _, missed = find_outcomes(_account(), (parse_fault("kill summary at step 9999"),))
    assert missed == ["kill summary at step 9999"]


def test_different_variables_fail_and_are_named_with_the_size_of_the_difference() -> None:
    found = _findings(comparison=OTHER)
    assert not found.passed
    assert "w (by 1e-07, relative 1e-06)" in found.problems[0]


def _begun_anew(*more: Line) -> Trial:
    """Return an account of a trainer preempted at step 50, one that ends before its first step and
    one from step 0.
    """
    entries = [
        at(0, "run_started", "watchdog"),
        at(0, "spawned", "trainer", pid=1),
        at(5, "ready", "trainer", step=1),
        at(5, "recovered", "trainer", step=0, source="fresh", seconds=5.0),
        at(20, "fault", "trainer", fault="kill trainer at step 50", step=50),
        at(20, "exited", "trainer", code=75, signal=None, cause="stopped", evidence="", step=50),
        at(21, "spawned", "trainer", 2, pid=2),
        at(22, "exited", "trainer", 2, code=None, signal="SIGKILL", cause="killed", evidence="", step=-1),
        at(23, "spawned", "trainer", 3, pid=3),
        *more,
        at(26, "ready", "trainer", 3, step=1),
        at(26, "recovered", "trainer", 3, step=0, source="fresh", seconds=6.0),
        at(40, "exited", "trainer", 3, code=0, signal=None, cause="completed", evidence="", step=100),
        at(41, "run_completed", "trainer", 3, step=100, goodput=0.5),
    ]
    account, _ = take_accounts(entries)
    assert account is not None
    return Trial("drill/drilled", (75, 0), account, "")


def test_a_start_from_nothing_after_progress_fails_though_the_variables_are_the_same() -> None:
    found = _findings(drilled=_begun_anew())
    assert found.variables == "identical"
    (problem,) = found.problems
    assert "attempt 3 after step 50;" in problem
    assert "drill/drilled.out" in problem


def test_a_program_that_deletes_its_checkpoints_at_the_start_is_named_as_the_reason_it_started_over() -> None:
    (problem,) = _findings(drilled=_begun_anew(at(24, "checkpoints_deleted", "trainer", 3, count=2))).problems
    assert "deletes its checkpoints" in problem


def test_a_different_last_step_is_named_though_the_program_is_not_deterministic() -> None:
    entries = [
        at(0, "run_started", "watchdog"),
        at(0, "spawned", "trainer", pid=1),
        at(5, "ready", "trainer", step=1),
        at(40, "exited", "trainer", code=0, signal=None, cause="completed", evidence="", step=150),
        at(41, "run_completed", "trainer", step=150, goodput=0.5),
    ]
    account, _ = take_accounts(entries)
    assert account is not None
    longer = Trial("logdir", (0,), account, "")
    same = Trial("logdir", (0,), _account(), "")
    found = _findings(drilled=longer, comparison=OTHER, is_deterministic=False, again=same)
    assert "step 150, but at step 100" in found.problems[0]
    assert "not deterministic" in found.problems[1]
    varies = _findings(drilled=longer, comparison=OTHER, is_deterministic=False, again=longer)
    assert len(varies.problems) == 1, "it ends at another step each time, with faults or without"


def test_a_result_within_the_tolerance_passes() -> None:
    close = {**OTHER, "different": [{**OTHER["different"][0], "is_close": True}]}
    assert _findings(comparison=close, rtol=1e-3).passed
    assert not _findings(comparison=close).passed


def test_state_outside_of_the_graph_is_told_apart_from_nondeterminism() -> None:
    assert "outside the graph" in _findings(comparison=OTHER, is_deterministic=True).problems[0]
    assert "not deterministic" in _findings(comparison=OTHER, is_deterministic=False).problems[0]


def _shown(found: Findings) -> str:
    console = Console(file=io.StringIO(), width=120)
    show_findings(found, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_difference_that_may_be_noise_proves_nothing_and_every_other_problem_does() -> None:
    assert "\nnot proven\n" in _shown(_findings(comparison=OTHER, is_deterministic=False))
    assert "\ndid not hold\n" in _shown(_findings(comparison=OTHER, is_deterministic=True))
    torn = {**WHOLE, "problems": ["loss at step 3 is there twice"]}
    assert "\ndid not hold\n" in _shown(_findings(comparison=OTHER, is_deterministic=False, continuity=torn))
    assert "\nheld\n" in _shown(_findings())


def test_a_program_that_fails_without_faults_gets_no_figures_of_faults() -> None:
    failed = Trial("logdir", (70,), _account(), "")
    said = _shown(judge_findings(Findings(failed, failed, [], [], {}, {}, 0.0)))
    assert "ended with 70" in said
    assert "goodput" not in said
    assert "survived" not in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"drilled": Trial("logdir", (-9, 70), _account(), "")}, "did not survive"),
        (
            {"drilled": Trial("logdir", (-9, 73), _account(), "step 4\nprocsv: it is in use")},
            "its last message: it is in use",
        ),
        ({"comparison": {}}, "no final checkpoint"),
        ({"continuity": {**WHOLE, "problems": ["loss at step 3 is there twice"]}}, "twice"),
        ({"continuity": {**WHOLE, "missing_tags": ["accuracy"]}}, "accuracy is missing"),
    ],
)
def test_every_problem_is_reported(changes: dict[str, Any], said: str) -> None:
    found = _findings(**changes)
    assert not found.passed
    assert said in "; ".join(found.problems)


def test_summaries_written_by_the_clock_are_not_missed() -> None:
    wanted = ["loss", "accuracy", "global_step/sec", "procsv/snapshot_interval"]
    assert find_missing_tags(wanted, ["accuracy"]) == ["loss"]


def test_the_default_plan_has_every_kind_of_fault_within_the_training() -> None:
    plan = default_plan(1000)
    assert {fault.target for fault in plan.faults} == {"trainer", "checkpoint", "summary", "watchdog"}
    assert all(0 < fault.at_step < 1000 for fault in plan.faults)
    with pytest.raises(UserError, match="12 global steps"):
        default_plan(12)


def test_a_plan_written_for_launch_is_parsed_back_as_the_same_plan() -> None:
    plan = Plan(default_plan(500).faults, 9)
    assert parse_plan(as_toml(plan), "plan.toml") == plan


def test_a_continuity_check_finds_unmarked_steps_backwards(tmp_path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary

    from procsv.services.summary.continuity import check_continuity
    from procsv.services.summary.event_file import frame

    def scalar(step: int) -> Event:
        return Event(step=step, summary=Summary(value=[Summary.Value(tag="loss", simple_value=1.0)]))

    def write(name: str, events: list[Event], rest: bytes = b"") -> None:
        data = b"".join(frame(event.SerializeToString()) for event in events)
        (tmp_path / f"events.out.tfevents.{name}").write_bytes(data + rest)

    restart = Event(step=5, session_log=SessionLog(status=SessionLog.START))
    write("1", [scalar(1), scalar(9)])
    write("2", [restart, scalar(5), scalar(9)])
    assert check_continuity(tmp_path).problems == []
    write("3", [scalar(7)])
    assert ["back to 7" in problem for problem in check_continuity(tmp_path).problems] == [True]
    write("3", [scalar(9)])
    assert ["twice" in problem for problem in check_continuity(tmp_path).problems] == [True]
    write("3", [], b"torn")
    assert ["no whole record" in problem for problem in check_continuity(tmp_path).problems] == [True]


# -- several tasks -------------------------------------------------------------------------------------------------
TASKS = ("chief", "worker.0", "ps.0", "evaluator.0")


def _group() -> tuple[Account, dict[str, Account]]:
    """Return accounts of a worker killed at step 50 and a server at step 70, which costs the chief a session."""
    started = [
        [
            at(1, "spawned", task, pid=1),
            at(5, "ready", task, step=1),
            at(5, "recovered", task, step=0, source="fresh", seconds=4.0),
        ]
        for task in TASKS[:2]
    ]
    dead: dict[str, Any] = {"code": None, "signal": "SIGKILL", "cause": "killed", "evidence": ""}
    account, tasks = take_accounts([
        at(0, "run_started", "watchdog", tasks=TASKS),
        at(1, "spawned", "ps.0", pid=4),
        *(entry for one in started for entry in one),
        at(20, "fault", "worker.0", fault="kill worker.0 at step 50", step=50),
        at(20, "exited", "worker.0", step=50, **dead),
        at(21, "spawned", "worker.0", 2, pid=2),
        at(22, "ready", "worker.0", 2, step=55),
        at(22, "recovered", "worker.0", 2, step=54, source="chief", seconds=2.0),
        at(30, "fault", "ps.0", fault="kill ps.0 at step 70", step=70),
        at(30, "exited", "ps.0", step=-1, **dead),
        at(30, "spawned", "ps.0", 2, pid=5),
        at(33, "session_recovered", "chief", step=64, at=65, source="memory", seconds=3.0, lost_steps=6),
        at(40, "exited", "chief", **{**dead, "code": 0, "signal": None, "cause": "completed"}, step=100),
        at(41, "run_completed", "chief", step=100, goodput=0.5),
    ])  # fmt: skip
    assert account is not None
    return account, tasks


def test_a_tasks_fault_is_reported_from_that_tasks_account_and_a_servers_by_the_session_it_cost() -> None:
    faults = tuple(parse_fault(text) for text in ("kill worker.0 at step 50", "kill ps.0 at step 70"))
    (worker, server), missed = find_outcomes(*_group()[:1], faults, _group()[1])
    assert missed == []
    assert (worker.task, worker.ended_task, worker.lost_steps, worker.down_s) == ("worker.0", True, 0, 2.0)
    assert worker.source == "chief"
    assert (server.task, server.ended_task, server.lost_steps, server.down_s) == ("ps.0", True, 6, 3.0)
    assert server.source == "memory"


def test_the_default_plan_has_a_row_for_each_kind_of_task() -> None:
    tasks = ("worker.0", "worker.1", "ps.0", "evaluator.0")
    alone, several = default_plan(1000), default_plan(1000, tasks)
    more = [str(fault) for fault in several.faults if fault not in alone.faults]
    assert more == ["kill worker.1 at step 200", "kill ps.0 at step 500", "kill evaluator.0 at step 700"]
    assert [fault.at_step for fault in several.faults] == sorted(fault.at_step for fault in several.faults)


@pytest.mark.parametrize(("tasks", "problems"), [({}, 1), (_group()[1], 0)])
def test_tasks_that_end_differently_without_faults_are_not_compared(tasks: dict[str, Account], problems: int) -> None:
    trial = Trial("logdir", (0,), _account(), "", tasks)
    found = Findings(trial, trial, *find_outcomes(trial.account, ()), OTHER, WHOLE, 0.0, is_deterministic=False)
    found.outcomes = _findings().outcomes
    assert len(judge_findings(found).problems) == problems
    assert ("asynchronous" in _shown(found)) is not problems
