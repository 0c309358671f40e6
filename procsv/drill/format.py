"""Format the findings of a drill: a table for people, plain data for programs.

`procsv drill` uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from procsv.base.terminal import as_markup, make_table
from procsv.base.units import show_duration
from procsv.drill.findings import Findings, Trial

if TYPE_CHECKING:
    from rich.console import Console

_SOURCES = {"fresh": "nothing"}  # other sources are shown under their own names
_VARIABLES = {
    "identical": "bit-identical to a run without faults",
    "close": "the same within --rtol",
    "different": "different from a run without faults",
    "unknown": "not compared",
}
_BY_ITSELF = "not compared: without faults they differ from run to run, as in asynchronous training"


def as_data(found: Findings) -> dict[str, Any]:
    """Return what `procsv drill --json` prints."""
    return {
        "held": found.passed,
        "problems": found.problems,
        "survived": found.drilled.survived,
        "variables": found.variables,
        "rtol": found.rtol,
        "deterministic": found.is_deterministic,
        "comparison": found.comparison,
        "summaries": found.continuity,
        "faults": [{**asdict(outcome), "down_s": round(outcome.down_s, 3)} for outcome in found.outcomes],
        "not_happened": found.missed,
        "skipped": found.skipped,
        "lost_steps": found.drilled.account.lost_steps,
        "goodput": round(found.drilled.account.goodput, 4),
        "baseline": _trial(found.baseline),
        "drilled": _trial(found.drilled),
    }


def _trial(trial: Trial) -> dict[str, Any]:
    account = trial.account
    return {
        "logdir": trial.logdir,
        "exit_codes": list(trial.exit_codes),
        "step": account.last_step,
        "wall_seconds": round(account.wall_s, 3),
        "seconds": {kind: round(seconds, 3) for kind, seconds in account.totals.items()},
        "goodput": round(account.goodput, 4),
    }


def show_findings(found: Findings, console: Console) -> None:
    if found.outcomes:
        names = ("fault", "at step", "process", "went on from", "steps lost", "down")
        table = make_table(names, right=("at step", "steps lost", "down"))
        for outcome in found.outcomes:
            went_on = _SOURCES.get(outcome.source, outcome.source) or ("-" if outcome.ended_task else "went on")
            table.add_row(
                as_markup(outcome.what),
                str(outcome.step) if outcome.step >= 0 else "-",
                f"{outcome.task} {outcome.incarnation}" + (" ended" if outcome.ended_task else ""),
                went_on,
                str(outcome.lost_steps) if outcome.ended_task else "-",
                show_duration(outcome.down_s) if outcome.down_s else "-",
            )
        console.print(table)
        console.print()
    for text in found.missed:
        console.print(f"did not happen: {as_markup(text)} (the training was over before)")
    for text, why in found.skipped.items():
        console.print(f"skipped: {as_markup(text)}: {as_markup(why)}")
    if found.baseline.survived:  # otherwise there was no training with faults
        _show_facts(found, console)
        console.print()
    failed = "[yellow]not proven[/]" if found.is_inconclusive else "[red]did not hold[/]"
    console.print("[green]held[/]" if found.passed else failed)
    for problem in found.problems:
        console.print(f"  {as_markup(problem)}")


def _show_facts(found: Findings, console: Console) -> None:
    from rich.table import Table

    drilled, baseline = found.drilled.account, found.baseline.account
    torn = found.continuity.get("problems", [])
    summaries = (
        f"{found.continuity['records']} records in {found.continuity['files']} files" if found.continuity else "-"
    )
    facts = Table.grid(padding=(0, 2))
    facts.add_row("survived", "yes" if found.drilled.survived else "no")
    facts.add_row("variables", _BY_ITSELF if found.varies_by_itself else _VARIABLES[found.variables])
    facts.add_row("summaries", summaries + (", continuous" if found.continuity and not torn else ""))
    facts.add_row("steps lost", str(drilled.lost_steps))
    facts.add_row("time", f"{show_duration(drilled.wall_s)}, without faults {show_duration(baseline.wall_s)}")
    facts.add_row("goodput", f"{drilled.goodput:.1%}, without faults {baseline.goodput:.1%}")
    facts.add_row("report", as_markup(f"procsv report {found.drilled.logdir}"))
    console.print(facts)
