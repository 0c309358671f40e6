"""Assign every second of a run to one kind: kept, redone, starting, down, stalled or stopped.

Used by `procsv report`, by its HTML page, and by drills. Pure: journal lines in, an account out; it
knows no file and no clock.

    kept      training whose steps are in the result, or in the state that the next start resumes
    redone    training that a crash lost and that had to be done again
    starting  from `procsv launch`, or the start of a trainer, to the end of its first step: imports,
              restore, compile
    down      no trainer: from a death to the next start, and from the last trainer's end to the end
              of the run; or no session: the connection to a server was lost, and the next session
              has not finished its first step
    stalled   a trainer that hung, from its last progress to its death; or a trainer stopped by a
              signal (SIGSTOP)
    stopped   no run was active: between two launches. If a task survived its launch and the next
              launch adopted it, this time is not stopped.

If a run has several tasks, its account is the account of the task whose state is saved. Each task
also has an account of its own, over the same time. There, the running time of a server or an
evaluator counts as kept. After a task has finished, its time counts as stopped, even while the run
goes on.
"""

from __future__ import annotations

from collections.abc import Iterable

from procsv.base.journal.entries import RunStarted
from procsv.base.journal.line import Line
from procsv.base.outcome import NO_STEP
from procsv.report.account import Account, Span
from procsv.report.account_builder import AccountBuilder


def take_accounts(
    lines: Iterable[Line], until_s: float | None = None, step: int = NO_STEP, is_running: bool = False
) -> tuple[Account | None, dict[str, Account]]:
    """Return the account of the run, and the account of each task by name.

    The second is empty if no launch had several tasks. The first is None if the journal is empty.
    `until_s` and `step` are for a journal without the end of the run: the Unix time when the run
    was last seen active (now, if `is_running`), and the global step at that time.
    """
    builder, builders = AccountBuilder(), dict[str, AccountBuilder]()
    for line in lines:
        builder.enter(line)
        for task in line.entry.tasks if isinstance(line.entry, RunStarted) else ():
            builders.setdefault(task, AccountBuilder(keeps_remarks=False, task=task))
        for each in builders.values():
            each.enter(line)
    account, accounts = builder.close_account(until_s, step, is_running), dict[str, Account]()
    for task, each in builders.items():
        one = each.close_account(until_s, NO_STEP, is_running)
        if one is not None and account is not None:
            if one.end_s < account.end_s:  # a later launch did not have this task
                one.spans.append(Span("stopped", one.end_s, account.end_s, 0))
                one.end_s = account.end_s
            accounts[task] = one
    if account is not None and accounts:
        # The run's account is the chief's, and has only the chief's failures: add the other tasks' failures.
        account.others_failures = sum(one.failures for one in accounts.values()) - account.failures
    return account, accounts
