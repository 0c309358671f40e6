"""Read the journal and run.json of a logdir, and make the account of the run.

Used by the command line and by drills. It changes nothing, and the run may be active.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from procsv.base.clock import Clock
from procsv.base.errors import UserError
from procsv.base.identity import TRAINER, TaskId, attempt_name
from procsv.base.journal.entries import RunStarted
from procsv.base.journal.file import read_journal
from procsv.base.journal.line import Line
from procsv.base.outcome import NO_STEP, FitPlace
from procsv.base.run.lease import find_elsewhere
from procsv.base.run.paths import find_paths
from procsv.base.run.run_file import find_run_in
from procsv.base.system.data_file import read_data
from procsv.report.account import Account
from procsv.report.time_ledger import take_accounts

REPORT_BYTES_MAX = 2**20


class Story(msgspec.Struct, frozen=True):
    logdir: str
    target: str
    args: tuple[str, ...]
    is_running: bool
    account: Account
    fit: FitPlace | None = None  # the progress of a Keras fit
    damaged_lines: int = 0  # journal lines that were skipped
    tasks: dict[str, Account] = {}  # the account of each task, if there are several
    started: RunStarted | None = None  # the journal entry of the newest launch
    home: str = ""  # the run's own directory


def read_story(directory: str | os.PathLike[str], clock: Clock) -> Story:
    """Return the story of the run in `directory`; UserError if there is no run."""
    paths = find_paths(directory)
    if not paths.logdir.is_dir():
        raise UserError(f"there is no directory {directory}")
    run = find_run_in(paths)
    is_running, until_s, step = False, None, NO_STEP
    if run is not None and run.ended_at is None:
        is_here, step = run.is_active, run.step
        is_running = is_here or find_elsewhere(paths, run.run) is not None
        until_s = clock.wall() if is_here else run.seen_at  # the watchdog updates it every second
    damaged: list[bytes] = []
    launches: deque[RunStarted] = deque(maxlen=1)
    account, tasks = take_accounts(_watch(read_journal(paths.journal, damaged), launches), until_s, step, is_running)
    if account is None:
        raise UserError(f"{directory} is not the logdir of a run: it has no {paths.journal.relative_to(paths.logdir)}")
    target, args = (run.target, run.args) if run is not None else ("", ())
    logdir = str(run.checkpoint_dir if run is not None else paths.logdir)
    fit = run.fit if run is not None else None
    started, home = launches[-1] if launches else None, run.paths.home if run is not None else paths.home
    return Story(logdir, target, args, is_running, account, fit, len(damaged), tasks, started, str(home))


def _watch(lines: Iterable[Line], launches: deque[RunStarted]) -> Iterator[Line]:
    """Yield `lines`, and collect the launches among them in `launches`."""
    for line in lines:
        if isinstance(line.entry, RunStarted):
            launches.append(line.entry)
        yield line


def read_report(story: Story, incarnation: int) -> str:
    """Return the crash report of an attempt, or "" if it has none."""
    task = TaskId.parse(next(iter(story.tasks), str(TRAINER)))
    path = Path(story.home, "crashes", f"{attempt_name(task, incarnation)}.txt")
    try:
        return read_data(path, REPORT_BYTES_MAX).decode(errors="replace")
    except OSError:
        return ""
