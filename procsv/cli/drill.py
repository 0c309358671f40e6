"""`procsv drill TARGET`: train a program once without faults and once with them, and compare the
results.

Called by main.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from procsv.base.encoding import indent_json
from procsv.base.system.output import make_console
from procsv.cli.values import Duration
from procsv.faults.plan_parser import make_plan

FAILED = 1  # exit code of a drill that did not pass


@click.command("drill", context_settings={"allow_interspersed_args": False, "show_default": True})
@click.option(
    "--plan",
    type=click.Path(dir_okay=False),
    metavar="PLAN.toml",
    show_default="eight faults, spread over the training; one more for each kind of task",
    help="Fault plan (TOML).",
)
@click.option(
    "--fault", multiple=True, metavar="TEXT", help="Add this fault (repeatable), for example 'kill trainer at step 50'."
)
@click.option("--seed", type=int, default=0, metavar="N", help="Random seed for the fault plan.")
@click.option(
    "--logdir",
    required=True,
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Where both runs go: DIR/baseline and DIR/drilled.",
)
@click.option(
    "--rtol",
    type=click.FloatRange(min=0.0),
    default=0.0,
    metavar="X",
    help="Relative tolerance when comparing variables.",
)
@click.option("--drop-in", is_flag=True, help="As for launch: replace TensorFlow's classes with procsv's.")
@click.option("--snapshot-secs", metavar="auto|S|0", help="As for launch.")
@click.option("--grace", type=Duration(least_s=1.0), metavar="S", help="As for launch.")
@click.option(
    "--config", type=click.Path(dir_okay=False), metavar="FILE", help="TOML file with further options of launch."
)
@click.option("--workers", type=click.IntRange(min=0), metavar="N", help="As for launch: several tasks.")
@click.option("--ps", type=click.IntRange(min=0), metavar="N", help="As for launch.")
@click.option("--evaluators", type=click.IntRange(min=0), metavar="N", help="As for launch.")
@click.option("--no-chief", is_flag=True, help="As for launch: the first worker is the chief.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.argument("target", metavar="TARGET")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def command(
    plan: str | None,
    fault: tuple[str, ...],
    seed: int,
    logdir: str,
    rtol: float,
    drop_in: bool,
    snapshot_secs: str | None,
    grace: float | None,
    config: str | None,
    workers: int | None,
    ps: int | None,
    evaluators: int | None,
    no_chief: bool,
    as_json: bool,
    target: str,
    args: tuple[str, ...],
) -> None:
    """Train TARGET once without faults and once with them, and compare the results.

    Exit code 0 if the program survived, never started from the beginning again, and has the same final variables (bit by bit,
    or within --rtol) and continuous summaries; 1 otherwise.
    """
    from procsv.drill.format import as_data, show_findings
    from procsv.drill.runner import Course, run_drill

    faults = make_plan(plan, fault, None, 0.0, seed)
    options = [*(["--drop-in"] if drop_in else []), *(["--no-chief"] if no_chief else [])]
    passed_on = {"--snapshot-secs": snapshot_secs, "--grace": grace, "--config": config}
    passed_on |= {"--workers": workers, "--ps": ps, "--evaluators": evaluators}
    for name, value in passed_on.items():
        options += [name, str(value)] if value is not None else []
    own = args[1:] if args[:1] == ("--",) else args
    course = Course(Path(logdir), target, own, tuple(options), rtol)
    found = run_drill(course, faults if faults.faults else None, _say)
    if as_json:
        click.echo(indent_json(as_data(found)))
    else:
        show_findings(found, make_console())
    sys.exit(0 if found.passed else FAILED)


def _say(text: str) -> None:
    """Print progress: a step only on a terminal, where it overwrites the previous line."""
    if not text.startswith(" "):
        click.echo(f"\r\x1b[K{text}" if sys.stderr.isatty() else text, err=True)
    elif sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", err=True, nl=False)
