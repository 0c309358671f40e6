"""`procsv restart DIR`: save, end and restart the program, and wait for the new attempt.

Called by main.py. The restart continues even if this command is interrupted.
"""

from __future__ import annotations

import threading

import click

from procsv.base.errors import UserError
from procsv.base.run.run_file import FINAL_STATES, RunFile
from procsv.base.terminal import printable
from procsv.cli.directory import ask_watchdog, directory_argument, find_run, refuse_elsewhere
from procsv.ipc.messaging.watchdog_messages import CannotRestart, RestartTrainer
from procsv.watchdog.core.reporting.wording import where_from

ASK_S_MAX = 5.0
LOOK_S = 0.1


@click.command("restart")
@directory_argument(changes_run=True)
def command(directory: str) -> None:
    """Save the state of the run in DIR, end its program and start it again. Earlier failures are forgiven."""
    run = find_run(directory)
    refuse_elsewhere(run)
    if not run.is_active or run.ended_at is not None:
        raise UserError(f"no run is active in {run.logdir} (state: {run.state}); start it with procsv launch", 1)
    answer = ask_watchdog(run, RestartTrainer(), ASK_S_MAX)
    if isinstance(answer, CannotRestart):
        resumes = ": it resumes" if max(run.durable_step, run.memory_step) >= 0 else ""
        raise UserError(
            f"{run.target} was not started by procsv launch, so procsv cannot start it again; "
            f"end it with `procsv stop {directory}`, then start it yourself{resumes}",
            1,
        )
    if answer is None:
        raise UserError(
            f"the watchdog of {run.logdir} (process {run.pid}) does not answer; try again, or use procsv stop --now", 1
        )
    click.echo(f"restarting {printable(run.target)} (attempt {run.incarnation}) …")
    after = _wait_for_next(directory, run)
    if after.incarnation == run.incarnation:
        raise UserError(f"the program was not started again: the run is {after.state}", 1)
    click.echo(f"started again as attempt {after.incarnation}, {where_from(after.memory_step, after.durable_step)}")


def _wait_for_next(directory: str, before: RunFile) -> RunFile:
    """Wait until the next attempt has started or the run has ended. Return the run's new state.

    This function sets no deadline, because the watchdog sets the deadlines of a restart.
    """
    pause = threading.Event()
    while True:
        run = find_run(directory)
        is_over = run.state in FINAL_STATES or not before.is_active
        if is_over or run.incarnation > before.incarnation:
            return run
        pause.wait(LOOK_S)
