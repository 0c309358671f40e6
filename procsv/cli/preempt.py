"""`procsv preempt DIR`: preempt a live run as a platform does, and report whether it was saved in
time.

Called by main.py.
"""

from __future__ import annotations

import sys

import click
from msgspec.structs import asdict

from procsv.base.encoding import indent_json
from procsv.base.errors import UserError
from procsv.base.run.run_file import holds_run_lock
from procsv.base.system.system_clock import SystemClock
from procsv.base.terminal import printable
from procsv.base.units import show_duration
from procsv.cli.directory import directory_argument, find_run, refuse_elsewhere
from procsv.cli.values import Duration
from procsv.drill.preemption import PROFILES, PreemptionOutcome, Profile, preempt


@click.command("preempt", context_settings={"show_default": True})
@directory_argument(changes_run=True)
@click.option(
    "--profile",
    type=click.Choice(tuple(PROFILES)),
    default="gcp-spot",
    help="Platform to imitate. gcp-spot: SIGTERM to all, off after 30 s; aws-spot: notice 120 s ahead; slurm: SIGTERM to "
    "all, 60 s; k8s: SIGTERM to the first process, 30 s.",
)
@click.option(
    "--grace", type=Duration(), metavar="S", show_default="the profile's", help="Time from the notice to the kill."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(directory: str, profile: str, grace: float | None, as_json: bool) -> None:
    """Preempt the run in DIR: give notice, wait for the grace, then kill what is left and drop its memory.

    Exit code 0 if every step was saved in time, 1 if not. The launch command that started the run resumes it.
    """
    run = find_run(directory)
    refuse_elsewhere(run)
    if run.ended_at is not None or not run.is_active or not holds_run_lock(run):
        raise UserError(f"no run is active in {run.logdir}; there is nothing to preempt", exit_code=1)
    chosen = PROFILES[profile]
    if grace is not None:
        chosen = Profile(grace, chosen.notifies_all)
    if not as_json:
        click.echo(
            f"{profile}: notice to {printable(run.target)} (process {run.pid}), {show_duration(chosen.grace_s)} of grace …",
            err=True,
        )
    outcome = preempt(run, profile, chosen, SystemClock())
    if as_json:
        more = {"lost_steps": outcome.lost_steps, "in_time": outcome.in_time, "margin": outcome.margin}
        click.echo(indent_json(asdict(outcome) | more))
    else:
        click.echo(printable(_sentence(outcome)))
    sys.exit(0 if outcome.in_time else 1)


def _sentence(outcome: PreemptionOutcome) -> str:
    if outcome.in_time:
        text = f"saved in time: step {outcome.saved_step} is on disk, no step lost"
    else:
        text = f"not saved in time: {outcome.lost_steps} steps lost; step {outcome.saved_step} is on disk"
    if outcome.margin is not None:
        text += f"; {show_duration(outcome.grace - outcome.margin)} after the notice, margin {show_duration(outcome.margin)}"
    if outcome.killed:
        return f"{text}. Killed when the grace was over: {', '.join(outcome.killed)}"
    assert outcome.ended_after is not None
    return f"{text}. All ended by themselves after {show_duration(outcome.ended_after)}, exit code {outcome.exit_code}"
