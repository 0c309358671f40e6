"""Declare the options of `procsv launch` about the run, its tasks and its machines.

Used by launch.py.
"""

from __future__ import annotations

from pathlib import Path

import click

from procsv.base.placement import CLUSTERS
from procsv.base.run.secret_file import VARIABLE as SECRET_FILE
from procsv.cli.config import load_config
from procsv.cli.usage.grouped_help import OptionGroup, count, option, seconds
from procsv.cli.values import SIZE, Duration

RUN = OptionGroup(
    "Run",
    option(
        "--logdir",
        type=click.Path(file_okay=False),
        show_default="runs/<target name>",
        help="Where checkpoints, event files and the journal go; created if it does not exist. A URL that TensorFlow can "
        "write to (gs://…) takes checkpoints and events, and the journal stays on this machine. Without it, they go where the "
        "program says, and the journal to the newest run of this target under runs/.",
        is_common=True,
    ),
    option(
        "--map-logdir",
        "maps_logdir",
        is_flag=True,
        help="Use the logdir in place of any directory that the program gives its session. Without this option, procsv refuses "
        "a program that names a directory outside --logdir.",
    ),
    option(
        "--new",
        "begins_new",
        is_flag=True,
        help="Begin a new run, in runs/<target name>-N, instead of going on with the newest.",
        is_common=True,
    ),
    option(
        "--resume",
        is_flag=True,
        help="Run the program of a complete run again, from its last state. A run that is not complete resumes without it.",
        is_common=True,
    ),
    option(
        "--drop-in",
        is_flag=True,
        help="Replace TensorFlow's Supervisor, monitored sessions and CheckpointManager and Keras' BackupAndRestore and "
        "ModelCheckpoint with procsv's, and protect every model.fit, for a program that does not know procsv.",
        is_common=True,
    ),
    option(
        "--snapshot-secs",
        "snapshot_s",
        type=Duration("auto"),
        default="auto",
        metavar="auto|S|0",
        help="Time between snapshots in memory, which is what a crash may cost. auto: as often as 1 % of the time allows; 0: only "
        "when a checkpoint is due.",
        is_common=True,
    ),
    option(
        "--standby",
        type=click.Choice(("warm", "hot", "off")),
        default="warm",
        help="Keep a process that has imported what the program imports; after a crash the next trainer is a fork of it. "
        "hot: it has also run the program up to its session, so the program's start runs twice.",
        is_common=True,
    ),
    count("--steps-total", 0, 0, "Steps of the whole training, for the status line; not needed with a StopAtStepHook."),
    option(
        "--detach",
        is_flag=True,
        help="Return as soon as the program has started, and let the run go on without this terminal.",
        is_common=True,
    ),
    option(
        "--log-limit",
        type=SIZE,
        default="512MiB",
        metavar="SIZE",
        help="Size at which the program's log is rotated; the previous part is kept as NAME.log.1. 0: never.",
    ),
    option(
        "--group-readable",
        is_flag=True,
        help="Let the group of the logdir read run.json, journal, logs and crash reports. By default only you can.",
    ),
    option(
        "--config",
        type=click.Path(dir_okay=False),
        is_eager=True,
        callback=load_config,
        show_default="[tool.procsv] in ./pyproject.toml",
        help="TOML file with any of these options.",
        is_common=True,
    ),
)

TASKS = OptionGroup(
    "Several tasks",
    count(
        "--workers",
        0,
        0,
        "Train in several tasks: N workers beside the chief. TF_CONFIG tells each task about the others. They run on this "
        "machine, unless --cluster spreads them over several.",
    ),
    count("--ps", 0, 0, "Parameter servers of a run with several tasks."),
    count("--evaluators", 0, 0, "Evaluators, which read the checkpoints of a run with several tasks."),
    option(
        "--chief/--no-chief",
        "has_chief",
        default=True,
        help="Whether there is a chief beside the workers. Without one, the state of worker 0 is saved.",
    ),
    option(
        "--restart",
        type=click.Choice(("auto", "task", "gang")),
        default="auto",
        help="What is started again when one of several tasks ends. task: that one. gang: chief and workers, together, as a collective "
        "strategy needs it. auto: gang, once the program has made a MultiWorkerMirroredStrategy and there are no parameter servers.",
    ),
    option(
        "--min-workers",
        type=click.IntRange(min=0),
        metavar="N",
        show_default="all",
        help="Go on without workers that are given up, as long as N of --workers are left. The chief does not count as a worker; "
        "with --no-chief, worker 0 does. Not for a gang. The chief and parameter servers are always needed.",
    ),
    option(
        "--consistent-snapshots",
        is_flag=True,
        help="Hold all tasks between two of their steps while the variables on parameter servers are captured, so that no snapshot mixes "
        "steps; it waits for the steps under way, 2 s at most, and then holds them for 50 ms at most. A snapshot for which that failed is marked as mixed. "
        "On several machines no task is held, and snapshots are marked as mixed.",
    ),
)

MACHINES = OptionGroup(
    "Several machines",
    option(
        "--cluster",
        type=click.Choice(CLUSTERS),
        default="auto",
        help="How this launch learns whether it is one of several, each with one task, and which task it has. slurm: from srun. tf-config: "
        "from TF_CONFIG. indexed-job: from the indexed Job or JobSet of its Kubernetes pod. local: it is the only one and runs all "
        "tasks. auto: from whichever of these the environment shows. The launch with the task whose state is saved coordinates the others.",
    ),
    count(
        "--spare-nodes",
        0,
        0,
        "Launches that wait without a task. When a machine is lost, one of them takes over its task, and all tasks restart.",
    ),
    option(
        "--secret-file",
        type=click.Path(path_type=Path),
        envvar=SECRET_FILE,
        show_default="none",
        metavar="FILE",
        help="Secret of at least 32 bytes that all launches of the run have (a mounted Secret, say). They derive the keys of their "
        "connections from it, and no key is left in the logdir.",
    ),
    seconds(
        "--peer-timeout",
        "peer_timeout_s",
        "10s",
        "How long the launch on another machine may be silent before it counts as lost.",
        least_s=1.0,
    ),
    seconds(
        "--coordinator-timeout",
        "coordinator_timeout_s",
        "300s",
        "How long the launches wait for each other at the start, and how long the members let their tasks run after the coordinator is lost.",
        least_s=1.0,
    ),
)
