"""Print the account of a run as text on a terminal.

Used by `procsv report` and by drills.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING

from procsv.base.journal.entries import CheckpointDurable, CheckpointFailed, CheckpointRejected
from procsv.base.outcome import NO_STEP
from procsv.base.terminal import as_markup, make_table
from procsv.base.units import show_count, show_duration
from procsv.report.account import KINDS, Account, Incarnation, SpanKind, lost_share
from procsv.report.reading import Story

if TYPE_CHECKING:
    from rich.console import Console

MEANING: dict[SpanKind, str] = {
    "kept": "training whose steps are kept",
    "redone": "training that was lost, and done again",
    "starting": "imports, restore, compile, first step",
    "down": "no trainer, or no connection to its server",
    "stalled": "hung, or stopped by a signal",
    "stopped": "no run was active: between two launches",
}
NARROW = 100  # columns
BY_STANDBY = ", standby"
DAY_S = 86400.0  # a shorter run does not need the date of each start
LOOKS: dict[SpanKind, tuple[str, str]] = {  # colour and glyph
    "kept": ("green", "█"),
    "redone": ("yellow", "▒"),
    "starting": ("blue", "▄"),
    "down": ("red", "x"),
    "stalled": ("magenta", "?"),
    "stopped": ("bright_black", "·"),
}


def headline(account: Account) -> str:
    """Say in one sentence how the run went."""
    spent = show_duration(account.wall_s)
    words = {"completed": "completed in", "running": "running for", "interrupted": "interrupted after"}
    text = f"{words.get(account.outcome, f'{account.outcome} after')} {spent}"
    if account.last_step > NO_STEP:
        text += f" at step {account.last_step}"
    failures = account.failures
    text += f"; {show_count(failures, 'failure')}" if failures else "; no failure"
    if account.lost_sessions:
        text += f", {show_count(account.lost_sessions, 'lost session')}"
    lost = [show_count(account.lost_steps, "step")] if account.lost_steps else []
    lost += [f"{show_duration(account.lost_seconds)} of training"] if account.lost_seconds else []
    if lost:
        text += f", {' and '.join(lost)} done again"
    if account.recoveries_s:
        text += f", back to training in {show_duration(median(account.recoveries_s))} (median)"
    return text


def place_in_fit(story: Story) -> str:
    """Say how far a Keras fit has progressed; "" without a fit."""
    if story.fit is None:
        return ""
    return f"it is in {story.fit}" if story.is_running else f"it was last seen in {story.fit}"


def done_without(account: Account) -> list[str]:
    """Return a sentence for each task that was given up while the others continued."""
    return [f"it continues without {task}, which was given up: {why}" for task, why in account.without.items()]


def show_report(story: Story, console: Console) -> None:
    account = story.account
    console.print(
        f"[bold]{as_markup(' '.join((story.target, *story.args)) or story.logdir)}[/bold]  {as_markup(story.logdir)}"
    )
    console.print(as_markup(headline(account)))
    if story.fit is not None:
        console.print(place_in_fit(story))
    if account.gave_up:
        console.print(as_markup(f"it gave up: {account.gave_up}"))
    for sentence in done_without(account):
        console.print(as_markup(sentence))
    console.print(f"goodput {account.goodput:.1%} of the time in which the run was active\n")
    _show_ledger(account, console)
    console.print()
    _show_bar(account, console)
    console.print()
    if story.tasks:
        _show_tasks(story.tasks, console)
        console.print(f"\nstarts of {next(iter(story.tasks))}:")
    _show_incarnations(account, console)
    _show_checkpoints(account, console)
    if story.damaged_lines:
        console.print(f"{story.damaged_lines} damaged lines of the journal were passed over")


def _show_ledger(account: Account, console: Console) -> None:
    table = make_table(("time", "", "share", "what it is"), right=("", "share"))
    for kind in KINDS:
        seconds = account.totals[kind]
        share = seconds / account.wall_s if account.wall_s > 0 else 0.0
        table.add_row(f"[{LOOKS[kind][0]}]■[/] {kind}", show_duration(seconds), f"{share:.1%}", MEANING[kind])
    console.print(table)


def _show_bar(account: Account, console: Console) -> None:
    """Print the whole run in one line; each cell shows the kind that took most of its time."""
    width = max(20, min(console.width - 2, 100))
    kinds = []
    for number in range(width):
        start_s = account.start_s + account.wall_s * number / width
        end_s = account.start_s + account.wall_s * (number + 1) / width
        shares = dict.fromkeys(KINDS, 0.0)
        for span in account.spans:
            shares[span.kind] += max(0.0, min(span.end_s, end_s) - max(span.start_s, start_s))
        kinds.append(max(KINDS, key=lambda kind: shares[kind]))
    alike = [(*LOOKS[kind], len(list(cells))) for kind, cells in itertools.groupby(kinds)]
    console.print("".join(f"[{colour}]{glyph * count}[/]" for colour, glyph, count in alike))


TASK_COLUMNS = ("task", "starts", "failures", "kept", "redone", "starting", "down", "stalled", "back in", "lost")


def _show_tasks(tasks: Mapping[str, Account], console: Console) -> None:
    columns = task_columns(tasks)
    table = make_table(columns, right=TASK_COLUMNS[1:])
    for row in task_rows(tasks):
        table.add_row(*map(as_markup, row))
    console.print(table)
    console.print(as_markup(lost_time(tasks)))


def task_columns(tasks: Mapping[str, Account]) -> tuple[str, ...]:
    """Return the column names, with the host if the run has several machines."""
    hosts = ("host",) if any(account.hosts for account in tasks.values()) else ()
    return (TASK_COLUMNS[0], *hosts, *TASK_COLUMNS[1:])


def task_rows(tasks: Mapping[str, Account]) -> list[tuple[str, ...]]:
    """Return a row per task, for `task_columns`.

    A row has the starts, failures, seconds of each kind, median recovery and lost steps.
    """
    rows, has_hosts = [], any(account.hosts for account in tasks.values())
    for task, account in tasks.items():
        totals, recoveries = account.totals, account.recoveries_s
        spent = [show_duration(totals[kind]) if totals[kind] else "-" for kind in KINDS if kind != "stopped"]
        after = show_duration(median(recoveries)) if recoveries else "-"
        counts = (str(len(account.incarnations)), str(account.failures or "-"))
        hosts = (", ".join(account.hosts),) if has_hosts else ()
        rows.append((task, *hosts, *counts, *spent, after, str(account.lost_steps or "-")))
    return rows


def lost_time(tasks: Mapping[str, Account]) -> str:
    """Say how much time the tasks lost together."""
    lost_s, ran_s = lost_share(tasks)
    share = lost_s / ran_s if ran_s > 0 else 0.0
    return f"the tasks that train lost {show_duration(lost_s)} of {show_duration(ran_s)} together ({share:.1%})"


ORIGINS = {
    "fresh": "the beginning",
    "memory": "memory",
    "checkpoint": "checkpoint",
    "alive": "the living model",
    "chief": "its chief",
}


def _show_incarnations(account: Account, console: Console) -> None:
    names = ("start", "at", "back in", "from", "to step", "lost", "ended")
    table = make_table(names, right=("start", "at", "back in", "to step", "lost"))
    is_short = account.wall_s < DAY_S
    for one in account.incarnations:
        number, at, after, origin, reached, ended, lost = incarnation_row(one)
        at = at.partition(" ")[2] if is_short else at
        origin = origin.removesuffix(BY_STANDBY) if console.width < NARROW else origin  # the end needs the room
        table.add_row(*map(as_markup, (number, at, after, origin, reached, lost, ended)))
    console.print(table)


def incarnation_row(one: Incarnation) -> tuple[str, ...]:
    """Return the start, time, recovery, origin, last step, end and lost steps of one attempt."""
    after = show_duration(one.recovery_seconds) if one.recovery_seconds is not None else "-"
    origin = ORIGINS.get(one.source, "-")
    if one.restored_step > 0:
        origin += f" {one.restored_step}"
    if one.is_promoted:
        origin += BY_STANDBY
    ended = f"{one.cause}: {one.evidence}" if one.cause else "runs" if one.end_s is None else "with its watchdog"
    reached = str(one.last_step) if one.last_step >= 0 else "-"
    lost = [str(one.lost_steps)] if one.lost_steps else []
    lost += [show_duration(one.lost_seconds)] if one.lost_seconds else []
    return str(one.number), clock_time(one.start_s), after, origin, reached, ended, ", ".join(lost) or "-"


def clock_time(time_s: float) -> str:
    return datetime.datetime.fromtimestamp(time_s).astimezone().strftime("%m-%d %H:%M:%S")


def _show_checkpoints(account: Account, console: Console) -> None:
    remarks = [line.entry for line in account.remarks]
    made = [entry for entry in remarks if isinstance(entry, CheckpointDurable)]
    failed = sum(isinstance(entry, CheckpointFailed) for entry in remarks)
    rejected = [entry.path for entry in remarks if isinstance(entry, CheckpointRejected)]
    text = f"\n{len(made)} checkpoints"
    if made:
        reasons = [entry.reason for entry in made]
        counted = ", ".join(f"{reasons.count(reason)} {reason}" for reason in dict.fromkeys(reasons))
        text += f" ({counted}); the last is of step {made[-1].step}"
    if failed:
        text += f"; {failed} could not be written at the first try"
    if rejected:
        text += f"; passed over: {', '.join(rejected)}"
    console.print(as_markup(text))
