"""`procsv launch`: check what is cheap to check, then become the watchdog, whose pid is the run's.

Called by main.py.  Imports nothing of the user's program.  The watchdog is not a new interpreter: half of what it imports is
here already, and the program waits for it.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from procsv.base.cluster import CHIEF, EVALUATOR, PS, WORKER, list_tasks
from procsv.base.errors import LogdirLocked
from procsv.base.identity import WATCHDOG
from procsv.base.placement import CLUSTERS, MOVED, BeginAgain, Placement, find_placement
from procsv.base.run.paths import RunPaths, check_socket_paths, find_paths
from procsv.base.run.secret_file import VARIABLE as SECRET_FILE
from procsv.base.run.secret_file import read_secret
from procsv.base.system.manager_variables import without_manager
from procsv.base.system.target import find_target
from procsv.base.system.template import VARIABLE as TEMPLATE
from procsv.base.system.tree_mark import add_mark
from procsv.base.text import is_remote
from procsv.cli.config import load_config
from procsv.cli.detach import launch_detached
from procsv.cli.invocation import invocation
from procsv.cli.plans import make_plan
from procsv.cli.run_directory import make_new_directory, newest_directory
from procsv.cli.usage.completion import complete_targets
from procsv.cli.usage.grouped_help import GroupedCommand
from procsv.cli.values import COMMAND_LINE, DURATION_RANGE, PHASE_LIMITS, SIZE, Duration
from procsv.faults.aim import aim_at_tasks
from procsv.ipc.messaging.early_trainer import start_early
from procsv.ipc.messaging.launch_settings import HANG_LIMITS_S, LaunchSettings
from procsv.ipc.messaging.start import Start, safe_path

LOGDIR = "{logdir}"  # in the program's arguments: the run's logdir

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def _count(flag: str, least: int, default: int, text: str) -> Decorator:
    return click.option(flag, type=click.IntRange(min=least), default=default, metavar="N", help=text)


def _seconds(flag: str, name: str, default: str | None, text: str, *words: str, least_s: float = 0.0) -> Decorator:
    metavar = "|".join((*words[:1], "S", *words[1:]))
    return click.option(flag, name, type=Duration(*words, least_s=least_s), default=default, metavar=metavar, help=text)


_EXAMPLES = """
procsv launch --logdir runs/mine train.py --steps 10000
procsv launch --drop-in my_package.train          a program that knows only TensorFlow
procsv launch --workers 2 --ps 1 train.py          a chief beside them, all told of each other by TF_CONFIG
srun -n4 procsv launch --workers 2 --ps 1 --logdir /shared/run train.py    the same, one task a process of the step
procsv launch --detach train.py                   the run goes on without this terminal
procsv launch --fault 'kill trainer at step 50' train.py
"""
_GROUPS = {
    "Run": "logdir map-logdir new drop-in snapshot-secs standby steps-total detach log-limit group-readable config help help-all",
    "Several tasks": "workers ps evaluators chief restart consistent-snapshots",
    "Several machines": "cluster spare-nodes secret-file peer-timeout coordinator-timeout",
    "Restarts": "max-failures backoff early-failures same-failures repeated-failures min-kept min-goodput "
    "goodput-attempts suspect-crashes service-failures service-period",
    "Hangs and limits": "hang-timeout hang-limits memory-limit malloc grace",
    "Events": "on-event on-event-timeout preempt-signal",
    "Faults": "fault plan preempt-every preempt-grace preempt-seed",
}
_COMMON = (
    "logdir drop-in new snapshot-secs standby detach config help help-all max-failures backoff hang-timeout memory-limit "
    "grace on-event fault plan preempt-every"
)


@click.command(
    "launch",
    cls=GroupedCommand,
    groups={title: tuple(names.split()) for title, names in _GROUPS.items()},
    common=frozenset(_COMMON.split()),
    examples=_EXAMPLES,
    context_settings={"allow_interspersed_args": False, "show_default": True},
    epilog="""
    Exit codes: 0 training complete; 2 usage; 70 gave up; 73 the logdir is in use or not writable; 75 stopped after a
    durable checkpoint: run the same command again to resume.

    Every option can stand in a TOML file (--config FILE, or [tool.procsv] in ./pyproject.toml) and in the environment
    (PROCSV_LAUNCH_BACKOFF for --backoff).
    """,
)
@click.option(
    "--logdir",
    type=click.Path(file_okay=False),
    show_default="runs/<target name>",
    help="Where checkpoints, event files and the journal go; created if it does not exist. A URL that TensorFlow can "
    "write to (gs://…) takes checkpoints and events, and the journal stays on this machine. Without it, they go where the "
    "program says, and the journal to the newest run of this target under runs/.",
)
@click.option(
    "--map-logdir",
    "maps_logdir",
    is_flag=True,
    help="Use the logdir in the place of whatever directory the program gives its session, instead of refusing another one.",
)
@click.option(
    "--new",
    "begins_new",
    is_flag=True,
    help="Begin a new run, in runs/<target name>-N, instead of going on with the newest.",
)
@click.option(
    "--drop-in",
    is_flag=True,
    help="Replace TensorFlow's Supervisor, monitored sessions and CheckpointManager and Keras' BackupAndRestore with procsv's, and look "
    "after every model.fit, for a program that does not know procsv.",
)
@click.option(
    "--snapshot-secs",
    "snapshot_s",
    type=Duration("auto"),
    default="auto",
    metavar="auto|S|0",
    help="Time between snapshots in memory, which is what a crash may cost. auto: as often as 1 % of the time allows; "
    "0: one for each checkpoint only.",
)
@click.option(
    "--standby",
    type=click.Choice(("warm", "hot", "off")),
    default="warm",
    help="Keep a process that has imported what the program imports; after a crash the next trainer is a fork of it. "
    "hot: it has also run the program up to its session, so the program's start runs twice.",
)
@_count("--max-failures", 1, 5, "Give up after N failures in a row without a newly saved step.")
@click.option(
    "--backoff",
    type=DURATION_RANGE,
    default="1s..60s",
    metavar="MIN..MAX",
    help="Delay before a restart: none after the first failure of a program that trained, then MIN, doubled with each "
    "failure, MAX at most.",
)
@_count("--early-failures", 1, 2, "Give up after N exceptions or exit codes before the first step ever.")
@_count("--same-failures", 2, 3, "Give up after the same exception at the same step N times.")
@_count(
    "--repeated-failures",
    0,
    5,
    "Give up after the same failure (exception and frame, signal, hang) N times in a row that leaves less than --min-kept "
    "of training each. 0: never.",
)
@_seconds(
    "--min-kept",
    "min_kept_s",
    "60s",
    "Training that is kept of an attempt, from which on a failure is no repeated one.",
)
@click.option(
    "--min-goodput",
    type=click.FloatRange(0.0, 1.0, max_open=True),
    default=0.05,
    metavar="SHARE",
    help="Give up when less than this share of the time of the last --goodput-attempts was training that is kept. 0: never.",
)
@_count("--goodput-attempts", 1, 10, "Attempts of which --min-goodput is asked.")
@_count("--suspect-crashes", 1, 2, "Resume from the checkpoint before, after N crashes from the same state.")
@_count("--service-failures", 1, 5, "Give up after N failures of one service within --service-period.")
@_seconds(
    "--service-period",
    "service_period_s",
    "300s",
    "Time in which the failures of a service are counted.",
    least_s=1.0,
)
@_seconds(
    "--hang-timeout",
    "hang_timeout_s",
    "auto",
    "Longest time that one step may take; then the program is ended and restarted. auto: 20 times the median "
    "step, at least 2 minutes and at most 30. procsv.extend(seconds) in the program adds to it.",
    "auto",
    "off",
    least_s=0.1,
)
@click.option(
    "--hang-limits",
    "hang_limits_s",
    type=PHASE_LIMITS,
    default=", ".join(f"{phase}={limit_s / 60:g}m" for phase, limit_s in HANG_LIMITS_S.items()),
    metavar="PHASE=S,...",
    help="Longest time that each other phase may go without progress, and a service without completing a loop "
    "iteration. A phase that is not named keeps its default. Before its first session a program is never ended.",
)
@_count(
    "--workers",
    0,
    0,
    "Train in several tasks: N workers beside the chief, which are told of each other by TF_CONFIG. On this machine, unless "
    "--cluster has them on several.",
)
@_count("--ps", 0, 0, "Parameter servers of such a training.")
@_count("--evaluators", 0, 0, "Evaluators of such a training, which read its checkpoints.")
@click.option(
    "--chief/--no-chief",
    "has_chief",
    default=True,
    help="Whether there is a chief beside the workers; else worker 0 is the task whose state is saved.",
)
@click.option(
    "--restart",
    type=click.Choice(("auto", "task", "gang")),
    default="auto",
    help="What is started again when one of several tasks ends. task: that one. gang: chief and workers, together, as a collective "
    "strategy needs it. auto: gang, once the program has made a MultiWorkerMirroredStrategy and there are no parameter servers.",
)
@click.option(
    "--consistent-snapshots",
    is_flag=True,
    help="Hold all tasks between two of their steps while the variables on parameter servers are captured, so that no snapshot mixes "
    "steps; at most 50 ms, and the time that the longest step under way takes. A snapshot for which that failed is marked as mixed.",
)
@click.option(
    "--cluster",
    type=click.Choice(CLUSTERS),
    default="auto",
    help="Whether this is one of several launches of the run, of one task each, and which. slurm: as srun has started them. tf-config: "
    "as TF_CONFIG says. indexed-job: a pod of an indexed Job or a JobSet of Kubernetes. local: no, all tasks are this one's. auto: "
    "what the environment has of these. The launch with the task whose state is saved coordinates the others.",
)
@_count(
    "--spare-nodes",
    0,
    0,
    "Launches that stand by beside those of the tasks: when a machine is lost, one of them takes its task over, and all begin again.",
)
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path),
    envvar=SECRET_FILE,
    show_default="none",
    metavar="FILE",
    help="Secret of at least 32 bytes that all launches of the run have (a mounted Secret, say). The keys of what they say to each other "
    "follow from it, and none is left in the logdir.",
)
@_seconds(
    "--peer-timeout",
    "peer_timeout_s",
    "10s",
    "Silence of another machine's launch after which it counts as lost.",
    least_s=1.0,
)
@_seconds(
    "--coordinator-timeout",
    "coordinator_timeout_s",
    "300s",
    "Time that all launches have to come, and that the others let their tasks run on after the coordinating one is lost.",
    least_s=1.0,
)
@_count("--steps-total", 0, 0, "Steps of the whole training, for the status line; a StopAtStepHook tells by itself.")
@click.option(
    "--memory-limit",
    type=SIZE,
    default="0",
    show_default="none",
    metavar="SIZE",
    help="Memory that the program and its children may use; above it, the program saves and is restarted free of charge.",
)
@click.option(
    "--log-limit",
    type=SIZE,
    default="512MiB",
    metavar="SIZE",
    help="Size at which the program's log is rotated; the previous part is kept as NAME.log.1. 0: never.",
)
@click.option(
    "--malloc",
    type=click.Choice(("keep", "system")),
    default="keep",
    help="keep: what a step has freed is kept for the next one, which is faster on a CPU; unless the environment has a setting of "
    "malloc's. system: as malloc does by itself.",
)
@click.option(
    "--on-event",
    type=COMMAND_LINE,
    default="",
    show_default="none",
    metavar="CMD",
    help="Command to run at a crash, a hang, a failed checkpoint, a preemption and the end, with the event as JSON on its "
    "standard input. It is split as a shell would split it, but run without a shell.",
)
@_seconds(
    "--on-event-timeout",
    "on_event_s",
    "30s",
    "Longest time that the command of --on-event may take; then it is killed.",
    least_s=0.1,
)
@click.option(
    "--group-readable",
    is_flag=True,
    help="Let the group of the logdir read run.json, journal, logs and crash reports; else they are yours alone.",
)
@click.option(
    "--detach",
    is_flag=True,
    help="Return as soon as the program has started, and let the run go on without this terminal.",
)
@_seconds("--grace", "grace_s", "25s", "Time that a stop may take, everything included.", least_s=1.0)
@click.option(
    "--fault",
    multiple=True,
    metavar="TEXT",
    help="Inject this fault (repeatable), for example 'kill trainer at step 50'. Of a run on several machines: 'kill machine of "
    "worker.0 at step 50', 'stop machine of ps.0 for 5s after 1m', 'cut machine of worker.0 for 20s at step 90'.",
)
@click.option("--plan", type=click.Path(dir_okay=False), metavar="FILE", help="Fault plan (TOML).")
@_seconds(
    "--preempt-every",
    "preempt_every",
    None,
    "Preempt the program at random intervals of this mean: notice, grace, kill, restart.",
    least_s=0.1,
)
@_seconds("--preempt-grace", "preempt_grace", "30s", "Time from the notice to the kill, with --preempt-every.")
@click.option(
    "--preempt-signal",
    type=click.Choice(("SIGTERM", "SIGUSR1", "SIGUSR2"), case_sensitive=False),
    default="SIGTERM",
    help="Extra signal treated as a preemption notice, to procsv or to the program. SIGTERM always is one.",
)
@click.option("--preempt-seed", type=int, default=0, metavar="N", help="Random seed for --preempt-every.")
@click.option(
    "--config",
    type=click.Path(dir_okay=False),
    is_eager=True,
    callback=load_config,
    show_default="[tool.procsv] in ./pyproject.toml",
    help="TOML file with any of these options.",
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
    if logdir is not None and begins_new:
        raise click.UsageError("--new makes a directory under runs/; with --logdir, name one that is not there yet")
    _check_tasks(settings)
    tasks = list_tasks(settings["workers"], settings["ps"], settings["evaluators"], has_chief=settings["has_chief"])
    placement = find_placement(cluster, os.environ, tasks if len(tasks) > 1 or spare_nodes else (), spare_nodes)
    os.environ.pop(MOVED, None)  # of no other launch
    secret = read_secret(secret_file) if secret_file is not None else b""
    if placement is not None:
        settings |= _place(placement, logdir, settings, has_secret=bool(secret))
    faults = make_plan(plan, fault, preempt_every, preempt_grace, preempt_seed)
    told = LaunchSettings(**settings)
    aimed = aim_at_tasks(faults, told.tasks, on_machines=placement is not None)
    told = msgspec.structs.replace(told, plan=aimed.encode())
    start = make_start(logdir, target, args, told, begins_new)
    naming, call = "mapped" if maps_logdir else start.naming, invocation()
    start = msgspec.structs.replace(start, naming=naming, asked_at=call.asked_at if call else 0.0)
    sys.stdout.flush()
    sys.stderr.flush()
    if start.settings.detach:
        sys.exit(launch_detached(start))
    if TEMPLATE not in os.environ and not start.settings.tasks:  # else a fork of that is there sooner
        start = start_early(start, add_mark(without_manager(os.environ), start.paths.mark))
    if call is None:
        sys.exit(_watch(start, placement, secret))
    call.after = partial(_watch, start, placement, secret)  # none of click's or main's business are its errors


def _place(placement: Placement, logdir: str | None, settings: dict[str, Any], *, has_secret: bool) -> dict[str, Any]:
    """The settings that follow from having one task of the run; a usage error for what a run on several machines cannot do."""
    if logdir is None:
        raise click.UsageError(f"--logdir is needed: the {placement.ranks} launches of this run have one")
    if is_remote(logdir) and (placement.coordinator is None or not has_secret):
        how = (
            "give all of them a --secret-file"
            if placement.coordinator is not None
            else "start them with TF_CONFIG and a --secret-file"
        )
        raise click.UsageError(
            f"{logdir} is not a directory, so the launches of this run cannot meet in it: {how}, by which they find each other without"
        )
    if settings["detach"]:
        raise click.UsageError("--detach would end this process, which its scheduler takes for the task")
    if settings["consistent_snapshots"]:
        raise click.UsageError("--consistent-snapshots is for tasks of one machine")
    count = Counter(task.role for task in placement.tasks)
    roles = {"workers": count[WORKER], "ps": count[PS], "evaluators": count[EVALUATOR]}
    return {**roles, "has_chief": CHIEF in placement.tasks}


def _check_tasks(settings: dict[str, Any]) -> None:
    tasks = settings["workers"] or settings["ps"] or settings["evaluators"]
    if not settings["has_chief"] and not settings["workers"]:
        raise click.UsageError(
            "--no-chief makes worker 0 the task whose state is saved; say how many there are with --workers"
        )
    if settings["restart"] == "gang" and settings["workers"] + settings["has_chief"] < 2:
        raise click.UsageError("--restart gang is for tasks that train together; say how many with --workers")
    if settings["consistent_snapshots"] and not settings["ps"]:
        raise click.UsageError(
            "--consistent-snapshots is for variables on parameter servers; say how many there are with --ps"
        )
    if tasks and settings["standby"] == "hot":
        raise click.UsageError(
            "--standby hot runs the program as its one trainer; with several tasks, use --standby warm"
        )


def _watch(start: Start, placement: Placement | None = None, secret: bytes = b"") -> int:
    """Becomes the watchdog, or a member that serves another machine's; the exit code of the run."""
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


def make_start(
    logdir: str | None, target: str, args: tuple[str, ...], settings: LaunchSettings, begins_new: bool = False
) -> Start:
    """What the watchdog is told, having checked the target and the logdir; UserError says what is wrong.

    `begins_new`: where no logdir is told, this is not to go on with an earlier run.
    """
    found = find_target(target, Path.cwd())
    paths = _make_directory(logdir, found.name, begins_new, outlives_login=settings.detach)
    if logdir is not None and is_remote(logdir):
        click.echo(
            f"procsv: checkpoints and events go to {logdir}; journal, logs and reports to {paths.home}", err=True
        )
    where = logdir.rstrip("/") if logdir is not None and is_remote(logdir) else str(paths.logdir)
    return Start(
        task=WATCHDOG,
        run=secrets.token_hex(8),
        incarnation=1,
        logdir=where,
        run_dir=str(paths.run_dir),
        shm_dir=str(paths.shm_dir),
        naming="anywhere" if logdir is None else "inside",
        target=target,
        args=tuple(arg.replace(LOGDIR, where) for arg in (args[1:] if args[:1] == ("--",) else args)),
        settings=settings,
    )


def _make_directory(logdir: str | None, name: str, begins_new: bool, *, outlives_login: bool) -> RunPaths:
    directory: str | Path = logdir or newest_directory(name)
    try:
        if begins_new:
            directory = make_new_directory(name)
        paths = find_paths(directory, outlives_login=outlives_login)
        check_socket_paths(paths)
        paths.logdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LogdirLocked(f"the logdir {directory} cannot be created: {error.strerror}") from error
    return paths
