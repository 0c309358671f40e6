"""List what grows in a run, how far, and who prunes it: the rows of docs/bounds.md, each with its
measurement in a soak.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

from procsv.base.journal import file as journal
from procsv.base.run import loaded, logs
from procsv.base.run.paths import SHM_ROOT, RunPaths
from procsv.base.units import show_size
from procsv.ipc.messaging import delivery, endpoint, zmq_transport
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.shm import slot_file, slot_header
from procsv.services.checkpoint import process as checkpoint_process
from procsv.services.checkpoint.core import states
from procsv.training.runtime import event_backlog
from procsv.watchdog.core import services as watched_services
from procsv.watchdog.core.hangs import trainer_liveness
from procsv.watchdog.core.reporting import status_line
from procsv.watchdog.core.task import lifecycle
from procsv.watchdog.edge import console, event_hook, run_records
from procsv.watchdog.host import processes

MIB = 2**20
KEPT = 5  # max_to_keep in the programs that a soak trains
ROLES = 4  # roles that have logs: trainer, standby, checkpoint, summary
TRACES = 2  # how many traces of kills during a write may exist at once


class Sight(msgspec.Struct, frozen=True):
    """A run, as a soak measures it."""

    paths: RunPaths
    watchdog: psutil.Process

    def count(self, directory: Path, *patterns: str) -> int:
        return sum(1 for pattern in patterns for _ in directory.glob(pattern))

    def largest(self, directory: Path, *patterns: str) -> int:
        """Return the bytes of the largest file."""
        sizes = [0]
        for pattern in patterns:
            for path in directory.glob(pattern):
                with contextlib.suppress(FileNotFoundError):  # it was replaced just now
                    sizes.append(path.stat().st_size)
        return max(sizes)

    def children(self, word: str) -> list[psutil.Process]:
        found = []
        for child in self.watchdog.children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it was killed just now
                if word in " ".join(child.cmdline()):
                    found.append(child)
        return found

    def memory(self, word: str = "") -> int:
        """Return the resident bytes of the watchdog, or of its largest child with `word` in its
        command.
        """
        sizes = [0] if word else [self.watchdog.memory_info().rss]
        for child in self.children(word) if word else ():
            with contextlib.suppress(psutil.NoSuchProcess):
                sizes.append(child.memory_info().rss)
        return max(sizes)


class Row(NamedTuple):
    what: str
    bound: str
    pruned_by: str
    measure: Callable[[Sight], float]
    most: float  # the largest measured value allowed in a soak


def _of_watchdog(what: str, bound: str, pruned_by: str) -> Row:
    return Row(what, bound, pruned_by, lambda run: run.memory(), 48 * MIB)


def _of_service(service: str, what: str, bound: str, pruned_by: str) -> Row:
    return Row(what, bound, pruned_by, lambda run: run.memory(f"procsv.services.{service}"), 256 * MIB)


FILES = (
    Row(
        "`procsv/journal.jsonl`, and its part before the last rotation, `journal.jsonl.1`",
        f"{show_size(journal.BYTES_MAX)} each",
        "the watchdog, as it appends: it renames the journal, which replaces the previous part",
        lambda run: run.largest(run.paths.home, "journal.jsonl*"),
        journal.BYTES_MAX + MIB,
    ),
    Row(
        "`procsv/run.json`, `id.json`, `lease.json`, `checkpoints.json`, `metrics.prom`",
        "one each, replaced; a line for each Saver, and each run whose snapshots are still in memory",
        "the process that writes it",
        lambda run: run.largest(run.paths.home, "[!i]*.json", "id.json"),
        MIB // 4,
    ),
    Row(
        "`procsv/imports.json`",
        f"{show_size(loaded.BYTES_MAX)}: one, replaced; a larger one is not read",
        "the trainer",
        lambda run: run.largest(run.paths.home, "imports.json"),
        loaded.BYTES_MAX,
    ),
    Row(
        "`procsv/logs/<role>.<number>.log`",
        f"{logs.LOGS_KEPT_MAX} of a role, and {show_size(logs.LOG_BYTES_MAX)} of them besides the newest",
        "the watchdog, at each start of the role; `procsv launch --detach` for `watchdog.<number>.log`",
        lambda run: run.count(run.paths.logs, "*.log"),
        ROLES * logs.LOGS_KEPT_MAX + ROLES,
    ),
    Row(
        "the newest log of a program, and its part before the last rotation",
        f"{show_size(LaunchSettings().log_limit)} each (`--log-limit`)",
        "the program's process, every 5 s",
        lambda run: run.largest(run.paths.logs, "trainer.*.log*"),
        LaunchSettings().log_limit,
    ),
    Row(
        "the newest log of a service, a standby or a detached watchdog",
        "a line for each kind of trouble, when it begins and when it ends",
        "with the older ones",
        lambda run: run.largest(run.paths.logs, "[!t]*.log"),
        MIB,
    ),
    Row(
        "`procsv/logs/on-event.log`, and its part before the last rotation",
        f"{show_size(event_hook.LOG_BYTES_MAX)} each, and what one command prints",
        "the watchdog, before each command",
        lambda run: run.largest(run.paths.logs, "on-event.log*"),
        event_hook.LOG_BYTES_MAX,
    ),
    Row(
        "`procsv/crashes/`",
        f"{run_records.CRASHES_KEPT_MAX} reports of a task or service, of two files each",
        "the watchdog, with each report",
        lambda run: run.count(run.paths.crashes, "*"),
        2 * (ROLES - 1) * run_records.CRASHES_KEPT_MAX,
    ),
    Row(
        "`model.ckpt-N.*` and its manifest",
        "`max_to_keep`, those that `keep_checkpoint_every_n_hours` keeps, and the one that is being replaced",
        "the checkpoint service, with each save",
        lambda run: run.count(run.paths.logdir, "model.ckpt-*.index"),
        KEPT + 2,
    ),
    Row(
        "`model.ckpt-N.rejected…`",
        "one for each damaged checkpoint; a restore adds at most as many as are kept. procsv never deletes one: it may be the only copy",
        "you",
        lambda run: run.count(run.paths.logdir, "*.rejected*"),
        KEPT,
    ),
    Row(
        "`procsv/staging/`",
        "two saves: the one under way, and one that was interrupted",
        "the checkpoint service, at its start and before each save",
        lambda run: run.count(run.paths.staging, "*"),
        3,
    ),
    Row(
        "`procsv/fits/`",
        "the room of four checkpoints",
        "the program's process, at the end of each fit",
        lambda run: run.count(run.paths.home / "fits", "*.index"),
        100,
    ),
    Row(
        "`procsv/group/`, `procsv/tasks/`",
        "a file for the coordinator that runs; a directory for each other launch",
        "the coordinator, at its start and end (`group/`); you (`tasks/`)",
        lambda run: run.count(run.paths.terms, "*") + run.count(run.paths.tasks, "*"),
        TRACES,
    ),
    Row(
        "`procsv/events.out.tfevents.*`",
        "a file for each launch, and some 1 KiB a minute",
        "you",
        lambda run: run.largest(run.paths.home, "events.out.tfevents.*"),
        16 * MIB,
    ),
    Row(
        "`events.out.tfevents.*`, `graph.pbtxt`",
        "what the program records: one event file for each writer and attempt, cut back with the state",
        "you",
        lambda run: (
            run.count(run.paths.logdir, "events.out.tfevents.*") - logs.newest_number(run.paths.logs, "trainer")
        ),
        TRACES,
    ),
    Row(
        "`procsv/.pen.<run>/`",
        "one for the run, and one for the run before",
        "the run, at its end; else the next run that takes the logdir",
        lambda run: run.count(run.paths.home, ".pen.*"),
        2,
    ),
    Row(
        "hidden files `.….new` and `.probe.…`",
        "one for each name, left by a kill during a write; the next write of that name replaces it",
        "the next write; you, if the name never comes again (`.probe.`, `.id.`, `.term.`)",
        lambda run: run.count(run.paths.home, ".*.new", ".probe.*"),
        TRACES + 1,
    ),
)

ELSEWHERE = (
    Row(
        "the runtime directory `procsv-ID`: sockets, locks, heartbeats, positions in event files",
        "some for each task and service that lives, and for a dead attempt until its report is written",
        "the watchdog, after each death and at the end of the run; a week after a kill, [any launch](how-it-works.md#what-killed-runs-leave)",
        lambda run: run.count(run.paths.run_dir, "*"),
        24,
    ),
    Row(
        "slots in `/dev/shm/procsv-UID-ID/`",
        f"{slot_file.SLOTS_DEFAULT + 1} of a task, and the one that its attempt has resumed from",
        "the checkpoint service, as soon as nobody needs it; the watchdog, at the end of the run; a week after a kill, any launch",
        lambda run: run.count(run.paths.shm_dir, "slot.*"),
        slot_file.SLOTS_DEFAULT + 2,
    ),
    Row(
        "parcels and staged checkpoints there",
        f"{show_size(event_backlog.QUEUE_BYTES_MAX)} of records of a stream; the newest staged checkpoint, and the one that is being saved",
        "the summary or the checkpoint service, once the contents are on disk",
        lambda run: run.count(run.paths.shm_dir, "*"),
        12,
    ),
    Row(
        "copies of a chief's memory, `/dev/shm/…-mirror-…` on another machine",
        "two snapshots",
        "the member, at the end of the run; a week after a kill, any launch on that machine",
        lambda run: run.count(SHM_ROOT, f"{run.paths.shm_dir.name}-mirror-*"),
        0,
    ),
    Row(
        "`$XDG_STATE_HOME/procsv/…` of a logdir that is a URL",
        "as `procsv/` above, for each URL",
        "you",
        lambda run: float(run.paths.home.parent != run.paths.logdir),
        0,
    ),
    Row(
        "temporary directories of what a standby imports",
        "one set for each standby",
        "the standby, at the end of the run",
        lambda run: len(run.children("procsv.training standby")),
        1,
    ),
)

MEMORY = (
    Row(
        "descriptors of the watchdog",
        "some for each process that lives",
        "the watchdog",
        lambda run: run.watchdog.num_fds(),
        80,
    ),
    _of_watchdog(
        "messages that a peer has not acknowledged, in every process",
        f"{delivery.UNACKED_MAX:,} for each peer, and {zmq_transport.QUEUE_MESSAGES_MAX:,} inside ZeroMQ; then the oldest is dropped and counted",
        "the sender; all of them at the peer's death",
    ),
    _of_watchdog(
        "peers of a socket, in every process",
        f"those that live, {endpoint.PARTED_MAX} that may come back, {endpoint.DEAD_MAX:,} that are dead; "
        f"{endpoint.DROPPED_REASONS_MAX} reasons for dropped messages",
        "its owner",
    ),
    _of_watchdog(
        "what is known of a task",
        f"{trainer_liveness.STEPS_KNOWN_MAX} durations of steps, {lifecycle.STORY_STEPS_MAX} changes of its state, "
        f"{LaunchSettings().goodput_attempts} attempts (`--goodput-attempts`), {LaunchSettings().repeated_failures} equal failures (`--repeated-failures`)",
        "the watchdog",
    ),
    _of_watchdog(
        "what was said and saved",
        f"{watched_services.REMEMBERED_MAX:,} checkpoints, {status_line.LOOKS_MAX} looks at the step, {console.LINES_WAITING_MAX:,} lines for a terminal "
        f"that is stopped, {run_records.REPORTS_AGAIN_MAX} crash reports, {event_hook.WAITING_MAX} events for `--on-event`",
        "the watchdog: the oldest go first",
    ),
    _of_watchdog(
        "processes that dead programs have left",
        f"{processes.FINISHING_MAX:,}",
        "the watchdog: the oldest go first",
    ),
    _of_watchdog("the time ledger", "sums for the run and for each task, no lines", "the watchdog"),
    _of_service(
        "checkpoint",
        "what is known of states and checkpoints",
        f"the checkpoints in the directory, {slot_header.HEADERS_MAX} slots, {states.BAD_MAX:,} states that could not be read, "
        f"{checkpoint_process.REJECTED_MAX} rejections",
        "the checkpoint service: with the files, or the oldest first",
    ),
    _of_service(
        "checkpoint",
        "buffers of a save",
        "some pieces of 4 MiB for each writing thread",
        "the checkpoint service, after the save",
    ),
    _of_service(
        "summary",
        "streams of event records",
        "only streams of each task's newest attempt",
        "the summary service, when a later attempt opens one",
    ),
    _of_watchdog(
        "orders to the launch of a task on another machine, and what is known of that launch",
        "until the launch acknowledges them, or counts as lost (`--peer-timeout`)",
        "the coordinator",
    ),
    Row(
        "what is known of fits, in a program's process",
        "the starts of the newest 10,000, and the ends of the newest 1,000",
        "the program's process: the oldest go first",
        lambda run: run.memory("procsv.training trainer"),
        4 * 2**30,
    ),
    Row(
        "event records on their way, in a program's process",
        f"{event_backlog.QUEUE_RECORDS_MAX:,} records and {show_size(event_backlog.QUEUE_BYTES_MAX)} of a stream; then the oldest that was never sent is dropped and counted",
        "the program's process, once they are written",
        lambda run: run.memory("procsv.training trainer"),
        4 * 2**30,
    ),
)

ROWS = FILES + ELSEWHERE + MEMORY


def find_growth(run: Sight) -> list[str]:
    """Return the bounds that are exceeded, and by what."""
    measured = [(row, row.measure(run)) for row in ROWS]
    return [f"{row.what}: {much:,.0f}, and not at most {row.most:,.0f}" for row, much in measured if much > row.most]
