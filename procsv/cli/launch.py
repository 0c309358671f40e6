"""`procsv launch`: do the cheap checks, then become the watchdog in the same process.

With --detach, the watchdog is a new process instead. Called by main.py. This module imports nothing
of the user's program. launching/ declares the options, in the groups that the help shows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec
from click.core import ParameterSource

from procsv.base.cluster import list_tasks
from procsv.base.encoding import encode_json
from procsv.base.identity import WATCHDOG
from procsv.base.journal.entries import Spawned
from procsv.base.journal.file import read_journal
from procsv.base.placement import MOVED, BeginAgain, Placement, find_placement
from procsv.base.run.logs import newest_number, prune_logs
from procsv.base.run.records import make_home, open_record
from procsv.base.run.run_file import read_run
from procsv.base.run.secret_file import read_secret
from procsv.base.system.processes import forbid_dumps, give_back_limit, raise_descriptor_limit
from procsv.cli.config import check_environment
from procsv.cli.invocation import invocation
from procsv.cli.launching.failure_options import EVENTS, FAULTS, LIMITS, RESTARTS
from procsv.cli.launching.new_start import check_consistent_snapshots, check_min_workers, check_tasks, settings_of
from procsv.cli.launching.new_start import make_start as make_start
from procsv.cli.launching.run_options import MACHINES, RUN, TASKS
from procsv.cli.usage.completion import complete_targets
from procsv.cli.usage.grouped_help import GroupedCommand
from procsv.faults.plan import aim_at_tasks
from procsv.faults.plan_parser import make_plan
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.start import Start, safe_path

DETACH_LOOK_S = 0.05  # between two checks of whether a detached run has begun
_EXAMPLES = """
procsv launch --logdir runs/mine train.py --steps 10000
procsv launch --drop-in my_package.train          a program that knows only TensorFlow
procsv launch --workers 2 --ps 1 train.py          a chief beside them, all told of each other by TF_CONFIG
srun -n4 procsv launch --workers 2 --ps 1 --logdir /shared/run train.py    the same, one task per srun process
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

    Every option can be set in a TOML file (--config FILE, or [tool.procsv] in ./pyproject.toml) and in the environment
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
    del config  # its callback has already loaded the file
    check_environment(click.get_current_context(), os.environ)
    if logdir == "":  # usually an unset shell variable
        raise click.UsageError("--logdir is empty; omit it for runs/<target name>")
    # A logdir from a configuration file or the environment says where runs go, not which run is meant.
    names_logdir = click.get_current_context().get_parameter_source("logdir") is ParameterSource.COMMANDLINE
    if begins_new and not names_logdir:
        logdir = None
    if logdir is not None and begins_new:
        raise click.UsageError("--new makes a directory under runs/; with --logdir, name one that is not there yet")
    if begins_new and settings["resume"]:
        raise click.UsageError("--new starts a new run, and --resume continues one: give one of them")
    check_tasks(settings)
    tasks = list_tasks(settings["workers"], settings["ps"], settings["evaluators"], has_chief=settings["has_chief"])
    placement = find_placement(cluster, os.environ, tasks if len(tasks) > 1 or spare_nodes else (), spare_nodes)
    os.environ.pop(MOVED, None)  # for this launch only; a launch by the program must not inherit it
    secret = read_secret(secret_file) if secret_file is not None else b""
    if placement is not None:
        settings |= settings_of(placement, logdir, settings, has_secret=bool(secret))
    check_min_workers(settings)
    check_consistent_snapshots(settings)
    faults = make_plan(plan, fault, preempt_every, preempt_grace, preempt_seed)
    options = LaunchSettings(**settings, misplaced=_misplaced(args))
    aimed = aim_at_tasks(faults, options.tasks)
    options = msgspec.structs.replace(options, plan=aimed.encode())
    start = make_start(logdir, target, args, options, begins_new)
    naming, call = "mapped" if maps_logdir else start.naming, invocation()
    asked_at = call.asked_at if call else 0.0
    start = msgspec.structs.replace(start, naming=naming, names_logdir=names_logdir, asked_at=asked_at)
    sys.stdout.flush()
    sys.stderr.flush()
    if start.settings.detach:
        sys.exit(launch_detached(start))
    if call is None:
        sys.exit(_watch(start, placement, secret))
    call.after = partial(_watch, start, placement, secret)  # neither click nor main handles its errors


def _misplaced(args: tuple[str, ...]) -> str:
    """Return the first of the program's arguments that is also an option of launch; "" if none is.

    The user may have meant it for launch, and put it behind TARGET by mistake.
    """
    options = {name for param in click.get_current_context().command.params for name in param.opts if name[:2] == "--"}
    return next((name for arg in args if (name := arg.partition("=")[0]) in options), "")


def _watch(start: Start, placement: Placement | None = None, secret: bytes = b"") -> int:
    """Run the watchdog, or a member of a run on several machines, and return the exit code.

    The watchdog runs in this interpreter. A new one would have to import again what is already
    loaded, which is half of the watchdog's imports, and the program would start later.
    """
    if not sys.flags.safe_path and safe_path():
        sys.path.pop(0)  # the current directory or the script's: no file of the user there may shadow a library
    if placement is not None:
        forbid_dumps()  # this process has the run's keys
        raise_descriptor_limit()
    from procsv.watchdog.main import run, run_placed

    if placement is None:
        return run(start)
    result = run_placed(start, placement, secret)
    return _begin_again(result) if isinstance(result, BeginAgain) else result


def _begin_again(again: BeginAgain) -> NoReturn:
    """Replace this process by a new launch with the same command line.

    The new launch keeps the process id, because the scheduler has given its slot to this process.
    If a kill comes before the exec, the other machines see that this machine is lost.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    moved = {MOVED: encode_json(again.move).decode()} if again.move is not None else {}
    give_back_limit()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **moved})


def launch_detached(start: Start) -> int:
    """Start the watchdog in a session of its own. Return 0 once the program has started, or the
    watchdog's exit code if it ends first.

    The watchdog's own output goes to procsv/logs/watchdog.<number>.log; the program's goes to its
    own logs as always.
    """
    make_home(start.paths, group_readable=start.settings.group_readable)
    log = start.paths.log(WATCHDOG, newest_number(start.paths.logs, str(WATCHDOG)) + 1)
    prune_logs(log)
    with os.fdopen(open_record(log, os.O_WRONLY | os.O_APPEND), "ab") as output:
        process = subprocess.Popen(
            start.argv(),
            env=start.environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    pause, is_unwanted = threading.Event(), False
    while is_unwanted or not _has_begun(start):
        if process.poll() is not None:
            click.echo(log.read_text(errors="replace"), err=True, nl=False)
            log.unlink(missing_ok=True)  # the user has just seen it
            return process.returncode
        try:
            pause.wait(DETACH_LOOK_S)
        except KeyboardInterrupt:  # the watchdog has its own session, so Ctrl-C does not reach it
            is_unwanted = True
            process.terminate()
    process.returncode = 0  # it outlives us; Popen must not warn that it still runs
    where = start.logdir
    click.echo(f"{start.target} runs as process {process.pid} in {where}")
    click.echo(f"  procsv status {where}    procsv logs -f {where}    procsv stop {where}")
    return 0


def _has_begun(start: Start) -> bool:
    """Return whether run.json belongs to this launch and the program has started."""
    run = read_run(start.paths.run_json)
    if run is None or run.run != start.run:
        return False
    return any(
        isinstance(line.entry, Spawned) and line.role == run.task and line.incarnation == run.incarnation
        for line in read_journal(start.paths.journal)
    )
