"""The time ledger: every second of a run is training kept, training redone, down, starting, stalled or stopped.

Used by `procsv report`, by drills and by the page.  Pure: journal lines in, an account out.  Knows no file and no clock.

    kept      training whose steps are in the result (or in the state that the next start goes on from)
    redone    training that was lost with a crash, and had to be done again
    starting  from `procsv launch`, or the start of a trainer, to the end of its first step: imports, restore, compile
    down      no trainer: from a death to the next start, and from the last trainer's end to the end of the run; or no
              session: from the loss of the connection to a server to the first step of the next session
    stalled   a trainer that hung, from its last progress to its death; or one that a signal had stopped (SIGSTOP)
    stopped   no run was active: between two launches.  A task that has outlived its launch, and is adopted by the next, was at it all the time

Of several tasks the account of the run is that of the task whose state is saved.  Each has one of its own, too, which covers the same
time: what a server or an evaluator runs counts as kept, and what follows the end of a task that has done its work as stopped.
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
    """The account of a journal, None of an empty one; and one of each task, by its name, where a launch had several.

    Of a run that has not ended by itself, `until_s` is the Unix time up to which somebody was seen to run it (now, if
    `is_running`), and `step` the global step as read then.
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
            if one.end_s < account.end_s:  # a later launch was without it
                one.spans.append(Span("stopped", one.end_s, account.end_s, 0))
                one.end_s = account.end_s
            accounts[task] = one
    if account is not None and accounts:
        # The run's account is that of one of them, and each has counted its own.
        account.others_failures = sum(one.failures for one in accounts.values()) - account.failures
    return account, accounts
