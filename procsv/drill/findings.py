"""Judge a drill: what each fault cost, and whether the program survived. Pure.

Used by `procsv drill`. runner.py reads the results that are compared here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from procsv.base.journal.entries import CheckpointsDeleted
from procsv.drill.blows import Blow
from procsv.report.account import Account

# Tags about the machine, written every few seconds: processes that live shorter than that may write none.
TIMED_TAGS = ("procsv/", "global_step/sec")
OUTSIDE_THE_GRAPH = (
    "without faults the program ends with the same variables every time, so the restarts make the difference: it keeps "
    "state outside the graph (a counter or a position in the data in Python, an unseeded random source, a file that it "
    "appends to). Such state is reset at each restart; derive it from the global step"
)
NOT_DETERMINISTIC = (
    "the program ends differently even without faults: it is not deterministic, and a drill cannot tell a lost step from "
    "noise. Seed it, run its operations on one thread (or tf.config.experimental.enable_op_determinism()), or allow a "
    "difference with --rtol"
)
COUNTS_ITSELF = (
    "it seems to count its steps or epochs in Python, where the count starts from zero at each restart; let the global step say "
    "when training is over"
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
    blows: list[Blow]
    missed: list[str]  # faults that could have happened and did not
    comparison: dict[str, Any]
    continuity: dict[str, Any]
    rtol: float
    is_deterministic: bool | None = None  # None: not tried, because there was no need
    again: Trial | None = None  # the second training without faults, which decides is_deterministic
    problems: list[str] = msgspec.field(default_factory=list)
    skipped: dict[str, str] = msgspec.field(default_factory=dict)  # faults that could not be carried out, and why

    @property
    def passed(self) -> bool:
        return not self.problems

    @property
    def varies_by_itself(self) -> bool:
        """Whether its tasks train asynchronously, so that no two trainings are alike and there is
        nothing to compare.
        """
        return bool(self.baseline.tasks) and self.variables == "different" and self.is_deterministic is False

    @property
    def is_open(self) -> bool:
        """It survived, but the variables' difference may or may not be the program's own noise."""
        return len(self.problems) == 1 and self.variables == "different" and self.is_deterministic is False

    @property
    def variables(self) -> str:
        """`identical`, `close` (within --rtol), `different`, or `unknown` if there is nothing to
        compare.
        """
        if not self.comparison:
            return "unknown"
        if self.comparison["is_identical"]:
            return "identical"
        return "close" if self.rtol > 0 and self.comparison["is_close"] else "different"


def find_missing_tags(wanted: Iterable[str], found: Iterable[str]) -> list[str]:
    """Return the tags that only the training without faults wrote, except tags written by the
    clock.
    """
    return sorted(tag for tag in set(wanted) - set(found) if not tag.startswith(TIMED_TAGS))


def judge_findings(found: Findings) -> Findings:
    """Fill in the problems that a user must know before relying on restarts."""
    problems = found.problems
    if not found.baseline.survived:
        problems.append(f"it does not end well even without faults: {_exits(found.baseline)}")
        return found
    problems.extend(_fresh_starts(found.drilled))
    if not found.drilled.survived:
        problems.append(f"it did not survive: {_exits(found.drilled)}")
    elif found.variables == "different" and not found.varies_by_itself:
        problems.extend(_other_end(found))
        problems.append(_difference(found))
    elif found.variables == "unknown":
        problems.append("there is no final checkpoint to compare")
    if not found.blows:
        problems.append("no fault happened: the training ended before the first was due; let it train longer")
    problems.extend(f"summaries: {problem}" for problem in found.continuity.get("problems", ()))
    problems.extend(f"summaries: {tag} is missing" for tag in found.continuity.get("missing_tags", ()))
    return found


def _exits(trial: Trial) -> str:
    codes = ", ".join(str(code) for code in trial.exit_codes)
    last = trial.account.incarnations[-1].evidence if trial.account.incarnations else ""
    why = f" ({last})" if last else ""
    said = [line for line in trial.last_words.splitlines() if line.startswith("procsv: ")]
    why += f", and said at last: {said[-1].removeprefix('procsv: ')}" if said else ""
    return (
        f"procsv launch ended with {codes}{why}; see `procsv report {trial.logdir}` and {trial.logdir}/procsv/crashes"
    )


def _fresh_starts(trial: Trial) -> list[str]:
    """Report starts from nothing after progress. The variables do not show them: each training
    begins that way.
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


def _other_end(found: Findings) -> list[str]:
    """Report a last step that differs from the training without faults, unless that varies by
    itself.
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
        parts = [f"variables that only one training has: {', '.join(alone[:5])}", *(parts if names else [])]
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
