"""Judge a drill: what each fault cost, and whether the program survived. Pure.

runner.py, which runs the drill, collects the results to judge. The cost of a fault comes from the
run's account (procsv/report/account.py). The *baseline* is the training without faults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from procsv.base.cluster import PS, role_of
from procsv.base.identity import TRAINER
from procsv.base.journal import entries
from procsv.base.journal.entries import CheckpointsDeleted
from procsv.base.journal.line import Line
from procsv.faults.plan import PlannedFault, describe
from procsv.report.account import Account, Incarnation

ENDS_A_TASK = frozenset({"kill", "segfault", "raise", "exit", "hang", "preempt"})


class FaultOutcome(msgspec.Struct, frozen=True):
    """A fault that happened, and its cost."""

    fault: str
    what: str
    step: int
    task: str  # the task that it targeted; if it targeted none, the task whose state is saved
    incarnation: int
    ended_task: bool  # whether it ended the process of that task
    lost_steps: int
    down_s: float  # from the end of that process to the end of the next attempt's first step
    source: str  # what the next attempt resumed from, a `Source` (procsv/base/outcome.py)


class _Happened(msgspec.Struct, frozen=True):
    """A fault as journaled; `fault` is None if the plan has no such fault."""

    line: Line
    entry: entries.Fault
    fault: PlannedFault | None


def find_outcomes(
    account: Account, faults: tuple[PlannedFault, ...], tasks: Mapping[str, Account] | None = None
) -> tuple[list[FaultOutcome], list[str]]:
    """Return the faults that happened, in order, and the texts of the faults that did not.

    `tasks`: if there are several tasks, the account of each, beginning with the task whose state is
    saved. The cost of a fault for a task comes from that task's account.
    """
    texts = {str(fault): fault for fault in faults}
    happened = [
        _Happened(line, line.entry, texts.get(line.entry.fault))
        for line in account.remarks
        if isinstance(line.entry, entries.Fault)
    ]
    accounts = dict(tasks or {str(TRAINER): account})
    chief = next(iter(accounts))
    accounts[chief] = account
    outcomes = dict[int, FaultOutcome]()
    for task, own in accounts.items():
        numbers = [number for number, one in enumerate(happened) if _whose(one, accounts, chief) == task]
        for number, outcome in zip(numbers, _outcomes_of(task, [happened[n] for n in numbers], own), strict=True):
            is_server = role_of(task) == PS
            outcomes[number] = (
                _with_session(outcome, happened[number].line.time, account, chief) if is_server else outcome
            )
    seen = {outcome.fault for outcome in outcomes.values()} | find_skipped(account).keys()
    return [outcomes[number] for number in sorted(outcomes)], [text for text in texts if text not in seen]


def find_skipped(account: Account) -> dict[str, str]:
    """Return the faults that could not be carried out, and why."""
    skipped = (line.entry for line in account.remarks if isinstance(line.entry, entries.FaultSkipped))
    return {entry.fault: entry.why for entry in skipped}


def _whose(one: _Happened, accounts: Mapping[str, Account], chief: str) -> str:
    return one.fault.target if one.fault is not None and one.fault.target in accounts else chief


def _outcomes_of(task: str, happened: Sequence[_Happened], account: Account) -> list[FaultOutcome]:
    following = dict(zip((one.number for one in account.incarnations), account.incarnations[1:], strict=False))
    return [
        _outcome_of(task, one, death, following.get(death.number) if death is not None else None)
        for one, death in zip(happened, _deaths(task, happened, account), strict=True)
    ]


def _deaths(task: str, happened: Sequence[_Happened], account: Account) -> list[Incarnation | None]:
    """Return, for each fault, the attempt of `task` that it ended; None if it ended none.

    Each attempt is matched with at most one fault. The first pass matches each fault that ends
    `task` itself with the attempt that it hit. This attempt may take so long to end that other
    faults happen before. The second pass matches each remaining fault with an attempt that ended
    between this fault and the next, or, if the fault hit the watchdog, with an attempt that was
    running.
    """
    found: list[Incarnation | None] = [None] * len(happened)
    taken = set[int]()
    for is_first_pass in (True, False):
        for number, one in enumerate(happened):
            if found[number] is not None or (is_first_pass and not _ends_its_target(task, one.fault)):
                continue
            until_s = account.end_s
            if not is_first_pass and number + 1 < len(happened):
                until_s = happened[number + 1].line.time
            for incarnation in account.incarnations:
                may_match = not is_first_pass or incarnation.number == one.line.incarnation
                if incarnation.number not in taken and may_match and _died_of(incarnation, one, until_s):
                    found[number] = incarnation
                    taken.add(incarnation.number)
                    break
    return found


def _ends_its_target(task: str, fault: PlannedFault | None) -> bool:
    return fault is not None and fault.target == task and fault.action in ENDS_A_TASK


def _died_of(incarnation: Incarnation, one: _Happened, until_s: float) -> bool:
    end_s, time_s = incarnation.end_s, one.line.time
    if end_s is not None and time_s <= end_s <= until_s and incarnation.cause not in ("completed", ""):
        return True
    is_of_watchdog = one.fault is not None and one.fault.target == "watchdog"
    return is_of_watchdog and incarnation.start_s <= time_s <= (end_s or until_s)


def _outcome_of(task: str, one: _Happened, died: Incarnation | None, following: Incarnation | None) -> FaultOutcome:
    text = one.entry.fault
    return FaultOutcome(
        fault=text,
        what=describe(one.fault) if one.fault is not None else text,
        step=one.entry.step,
        task=task,
        incarnation=died.number if died is not None else one.line.incarnation,
        ended_task=died is not None,
        lost_steps=died.lost_steps if died is not None else 0,
        down_s=_down_s(died, following),
        source=following.source if following is not None and died is not None else "",
    )


def _down_s(died: Incarnation | None, following: Incarnation | None) -> float:
    if died is None or following is None or following.ready_s is None or died.end_s is None:
        return 0.0
    return following.ready_s - died.end_s


def _with_session(outcome: FaultOutcome, since_s: float, account: Account, chief: str) -> FaultOutcome:
    """Add what the loss of a parameter server cost the chief.

    The chief then rebuilds its session. If it cannot, it restarts.
    """
    for later in account.remarks:
        entry, is_its_own = later.entry, later.time >= since_s and later.role == chief
        if is_its_own and isinstance(entry, entries.SessionRecovered | entries.Recovered):
            lost_steps = entry.lost_steps or 0
            return msgspec.structs.replace(outcome, lost_steps=lost_steps, down_s=entry.seconds, source=entry.source)
    return outcome


# Tags that are written every few seconds. A process that ends sooner may write none of them.
TIMED_TAGS = ("procsv/", "global_step/sec")
OUTSIDE_THE_GRAPH = (
    "two trainings without faults ended with the same variables, so the restarts make the difference: the program "
    "probably keeps state outside the graph (a counter or a position in the data in Python, an unseeded random source, a "
    "file that it appends to). Such state is reset at each restart; derive it from the global step"
)
NOT_DETERMINISTIC = (
    "the program ends differently even without faults: it is not deterministic, and a drill cannot tell a lost step from "
    "noise. Seed it, run its operations on one thread (or tf.config.experimental.enable_op_determinism()), or allow a "
    "difference with --rtol"
)
COUNTS_ITSELF = (
    "the program seems to count its steps or epochs in Python, where the count starts from zero at each restart. Use the "
    "global step to decide when training is over"
)


class Trial(msgspec.Struct, frozen=True):
    logdir: str
    exit_codes: tuple[int, ...]  # one per launch; negative: killed by that signal
    account: Account
    last_words: str  # the end of its output
    tasks: dict[str, Account] = {}  # the account of each task, if there are several

    @property
    def survived(self) -> bool:
        return bool(self.exit_codes) and self.exit_codes[-1] == 0


class Findings(msgspec.Struct):
    """The result of a drill. `passed`: no problem was found."""

    baseline: Trial
    drilled: Trial
    outcomes: list[FaultOutcome]
    missed: list[str]  # faults that could have happened and did not
    comparison: dict[str, Any]
    continuity: dict[str, Any]
    rtol: float
    is_deterministic: bool | None = None  # None: not tried, because there was no need
    again: Trial | None = None  # a second baseline, compared with the first for `is_deterministic`; None: not tried
    problems: list[str] = msgspec.field(default_factory=list)
    skipped: dict[str, str] = msgspec.field(default_factory=dict)  # faults that could not be carried out, and why

    @property
    def passed(self) -> bool:
        return not self.problems

    @property
    def varies_by_itself(self) -> bool:
        """Whether a program with several tasks ends with other variables even without faults.

        That is normal for tasks that train asynchronously. So differences in the variables are then
        no problem, even if the tasks of this program train in step.
        """
        return bool(self.baseline.tasks) and self.variables == "different" and self.is_deterministic is False

    @property
    def is_inconclusive(self) -> bool:
        """Whether the only problem is that the variables differ, and they also differ between two
        trainings without faults.

        The difference may then be the program's own noise.
        """
        return len(self.problems) == 1 and self.variables == "different" and self.is_deterministic is False

    @property
    def variables(self) -> str:
        """`identical`, `close` (within --rtol), `different`, or `unknown` without a comparison."""
        if not self.comparison:
            return "unknown"
        if self.comparison["is_identical"]:
            return "identical"
        return "close" if self.rtol > 0 and self.comparison["is_close"] else "different"


def find_missing_tags(wanted: Iterable[str], found: Iterable[str]) -> list[str]:
    """Return the tags that only the baseline wrote, except TIMED_TAGS."""
    return sorted(tag for tag in set(wanted) - set(found) if not tag.startswith(TIMED_TAGS))


def judge_findings(found: Findings) -> Findings:
    """Fill in `problems`: what a user must know before relying on restarts. Return `found`."""
    problems = found.problems
    if not found.baseline.survived:
        problems.append(f"the program fails even without faults: {_exits(found.baseline)}")
        return found
    problems.extend(_fresh_starts(found.drilled))
    if not found.drilled.survived:
        problems.append(f"it did not survive: {_exits(found.drilled)}")
    elif found.variables == "different" and not found.varies_by_itself:
        problems.extend(_different_last_step(found))
        problems.append(_difference(found))
    elif found.variables == "unknown":
        problems.append("there is no final checkpoint to compare")
    if not found.outcomes:
        problems.append(
            "no fault happened: each was skipped, or due after training had ended. Train longer, or change the plan"
        )
    problems.extend(f"summaries: {problem}" for problem in found.continuity.get("problems", ()))
    problems.extend(f"summaries: {tag} is missing" for tag in found.continuity.get("missing_tags", ()))
    return found


def _exits(trial: Trial) -> str:
    codes = ", ".join(str(code) for code in trial.exit_codes)
    last = trial.account.incarnations[-1].evidence if trial.account.incarnations else ""
    why = f" ({last})" if last else ""
    said = [line for line in trial.last_words.splitlines() if line.startswith("procsv: ")]
    why += f"; its last message: {said[-1].removeprefix('procsv: ')}" if said else ""
    return (
        f"procsv launch ended with {codes}{why}; see `procsv report {trial.logdir}` and {trial.logdir}/procsv/crashes"
    )


def _fresh_starts(trial: Trial) -> list[str]:
    """Report attempts that started from the beginning although an earlier attempt had trained.

    The final variables do not show this: training from the beginning ends with the same variables.
    """
    starts, reached = list[tuple[int, int]](), 0
    for one in trial.account.incarnations:
        if one.source == "fresh" and reached > 0:
            starts.append((one.number, reached))
            reached = 0
        reached = max(reached, one.last_step)
    if not starts:
        return []
    which = ", ".join(f"attempt {number} after step {step}" for number, step in starts[:3])
    which += f" and {len(starts) - 3} more" if len(starts) > 3 else ""
    deleted = {line.incarnation for line in trial.account.remarks if isinstance(line.entry, CheckpointsDeleted)}
    why = (
        "the program deletes its checkpoints at its start"
        if deleted & {number for number, _ in starts}
        else f"there was no state to resume from (see the warnings in {trial.logdir}.out)"
    )
    return [f"all progress was lost, and the training started from the beginning: {which}; {why}"]


def _different_last_step(found: Findings) -> list[str]:
    """Report that the drilled training ended at a different step from the baseline.

    Report nothing if two baselines ended at different steps, too.
    """
    step, wanted = found.drilled.account.last_step, found.baseline.account.last_step
    if step == wanted or (found.again is not None and found.again.account.last_step != wanted):
        return []
    return [f"it ended at step {step}, but at step {wanted} without faults. {_sentence(COUNTS_ITSELF)}"]


def _difference(found: Findings) -> str:
    comparison = found.comparison
    names = ", ".join(
        f"{one['name']} ({_by_how_much(one)})" for one in comparison["different"][:3] if not one["is_close"]
    )
    alone = [*comparison["only_in_first"], *comparison["only_in_second"]]
    parts = [f"{comparison['different_count']} of {comparison['variables']} final variables differ: {names}"]
    if alone:
        parts = [
            f"variables that exist only with or only without faults: {', '.join(alone[:5])}",
            *(parts if names else []),
        ]
    text = "; ".join(parts)
    if found.is_deterministic is None:
        return text
    return f"{text}. {_sentence(OUTSIDE_THE_GRAPH if found.is_deterministic else NOT_DETERMINISTIC)}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _by_how_much(one: dict[str, Any]) -> str:
    owner = f"{one['owner']}, " if one.get("owner") else ""
    if one["max_abs"] is None:
        return f"{owner}{one['elements']} elements" if one["shape"] or not owner else owner.rstrip(", ")
    return f"{owner}by {one['max_abs']:.3g}, relative {one['max_rel']:.3g}"
