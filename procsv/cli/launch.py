"""`procsv launch`: check what is cheap to check, then become the watchdog, whose pid is the run's.

Called by main.py.  Imports nothing of the user's program.  Its options are declared in launching/, in the groups of its help.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from procsv.base.cluster import list_tasks
from procsv.base.placement import MOVED, BeginAgain, Placement, find_placement
from procsv.base.run.secret_file import read_secret
from procsv.cli.detach import launch_detached
from procsv.cli.invocation import invocation
from procsv.cli.launching.failure_options import EVENTS, FAULTS, LIMITS, RESTARTS
from procsv.cli.launching.new_start import make_start as make_start
from procsv.cli.launching.run_options import MACHINES, RUN, TASKS
from procsv.cli.launching.several import check_consistent_snapshots, check_min_workers, check_tasks, place
from procsv.cli.usage.completion import complete_targets
from procsv.cli.usage.grouped_help import GroupedCommand
from procsv.faults.plan import aim_at_tasks
from procsv.faults.plan_parser import make_plan
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.start import Start, safe_path

_EXAMPLES = """
procsv launch --logdir runs/mine train.py --steps 10000
procsv launch --drop-in my_package.train          a program that knows only TensorFlow
procsv launch --workers 2 --ps 1 train.py          a chief beside them, all told of each other by TF_CONFIG
srun -n4 procsv launch --workers 2 --ps 1 --logdir /shared/run train.py    the same, one task a process of the step
procsv launch --detach train.py                   the run goes on without this terminal
procsv launch --fault 'kill trainer at step 50' train.py
"""


@click.command(
    "launch",
    cls=GroupedCommand,
    groups=(RUN, TASKS, MACHINES, RESTARTS, LIMITS, EVENTS, FAULTS),
    examples=_EXAMPLES,
    context_settings={"allow_interspersed_args": False, "show_default": True},
    epilog="""
    Exit codes: 0 training complete, or nothing to do; 2 usage, or the run there has other arguments; 70 gave up; 73 the
    logdir is in use or not writable; 75 stopped after a durable checkpoint: run the same command again to resume.

    Every option can stand in a TOML file (--config FILE, or [tool.procsv] in ./pyproject.toml) and in the environment
    (PROCSV_LAUNCH_BACKOFF for --backoff).
    """,
)
@click.argument("target", metavar="TARGET", shell_complete=complete_targets)
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def command(
    logdir: str | None,
    maps_logdir: bool,
    begins_new: bool,
    fault: tuple[str, ...],
    plan: str | None,
    preempt_every: float | None,
    preempt_grace: float,
    preempt_seed: int,
    cluster: str,
    spare_nodes: int,
    secret_file: Path | None,
    config: str | None,
    target: str,
    args: tuple[str, ...],
    **settings: Any,  # noqa: ANN401  the rest, each checked by its option's type
) -> None:
    """Run TARGET, and restart it from its newest state when it crashes or hangs.

    TARGET is pkg.module, path/to/train.py or pkg.module:function. Arguments after TARGET are passed to the program; {logdir} in
    them becomes the run's logdir. With several tasks, {task_type}, {task_index}, {ps_hosts}, {worker_hosts} and {chief_hosts}
    become those of each task.
    """
    del config  # it has done its work
    if logdir == "":  # a shell variable that is not set, mostly
        raise click.UsageError("--logdir is empty; omit it for runs/<target name>")
    # One from a configuration file or the environment says where runs go, not which one is meant.
    names_logdir = click.get_current_context().get_parameter_source("logdir") is ParameterSource.COMMANDLINE
    if begins_new and not names_logdir:
        logdir = None
    if logdir is not None and begins_new:
        raise click.UsageError("--new makes a directory under runs/; with --logdir, name one that is not there yet")
    if begins_new and settings["resume"]:
        raise click.UsageError("--new begins a new run, and --resume goes on with one: give one of them")
    check_tasks(settings)
    tasks = list_tasks(settings["workers"], settings["ps"], settings["evaluators"], has_chief=settings["has_chief"])
    placement = find_placement(cluster, os.environ, tasks if len(tasks) > 1 or spare_nodes else (), spare_nodes)
    os.environ.pop(MOVED, None)  # of no other launch
    secret = read_secret(secret_file) if secret_file is not None else b""
    if placement is not None:
        settings |= place(placement, logdir, settings, has_secret=bool(secret))
    check_min_workers(settings)
    check_consistent_snapshots(settings)
    faults = make_plan(plan, fault, preempt_every, preempt_grace, preempt_seed)
    told = LaunchSettings(**settings)
    aimed = aim_at_tasks(faults, told.tasks)
    told = msgspec.structs.replace(told, plan=aimed.encode())
    start = make_start(logdir, target, args, told, begins_new)
    naming, call = "mapped" if maps_logdir else start.naming, invocation()
    asked_at = call.asked_at if call else 0.0
    start = msgspec.structs.replace(start, naming=naming, names_logdir=names_logdir, asked_at=asked_at)
    sys.stdout.flush()
    sys.stderr.flush()
    if start.settings.detach:
        sys.exit(launch_detached(start))
    if call is None:
        sys.exit(_watch(start, placement, secret))
    call.after = partial(_watch, start, placement, secret)  # none of click's or main's business are its errors


def _watch(start: Start, placement: Placement | None = None, secret: bytes = b"") -> int:
    """Becomes the watchdog, or a member that serves another machine's; the exit code of the run.

    It is not a new interpreter: half of what it imports is here already, and the program waits for it.
    """
    if not sys.flags.safe_path and safe_path():
        sys.path.pop(0)  # a file of the user's there must not stand for a library's
    try:
        if placement is not None and not placement.coordinates:
            from procsv.watchdog.member import run_member

            return run_member(start, placement, secret)
        from procsv.watchdog.main import run

        return run(start, placement=placement, secret=secret)
    except BeginAgain as again:
        return _begin_again(again)


def _begin_again(again: BeginAgain) -> int:
    """The same command in the same process, to which a scheduler has given its place.  Killed before: as a machine that is lost."""
    sys.stdout.flush()
    sys.stderr.flush()
    told = {MOVED: msgspec.json.encode(again.move).decode()} if again.move is not None else {}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **told})
