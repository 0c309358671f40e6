"""Table `group`: a chief, two workers and a parameter server, each killed in turn; then two tasks
that train in step.

Called by __main__.py. One `procsv launch` and a shell loop for each task take turns: the same
program under procsv's and under TensorFlow's MonitoredTrainingSession, or CheckpointManager where
tasks train in step. TensorFlow's monitored session is the better of its two classes here: a
Supervisor whose server is lost must be restarted.
"""

from __future__ import annotations

import math
import os
import signal
import statistics
import time
from collections import defaultdict
from dataclasses import astuple, dataclass, field
from random import Random

from scripts.benchmarks.figures import Bar, Cell, Column, Figure, Table
from scripts.benchmarks.group_runs import (
    ALONE,
    CHIEF,
    IN_FLIGHT_S,
    IN_STEP,
    OTHER,
    SERVED,
    SERVER,
    WORKER,
    Group,
    group_running,
    program_args,
)
from scripts.benchmarks.own_processes import Own, measure_own
from scripts.benchmarks.processes import END_S_MAX
from scripts.benchmarks.settings import Arm, Settings

MB, WORK, PAUSE_S = 4.0, 1, 0.02
SAVE_S, SNAPSHOT_S = 5.0, 1.0
TRAIN_S, TRAIN_MORE_S = 6.0, 3.0  # before each kill; the second is the largest random addition
BOUNDARY_STEPS = 2  # a due snapshot waits for the end of a step, and is complete one step later
SHARE_MAX, SERVER_SHARE_MAX = 0.35, 0.25  # of the shell loops' median
PAUSE_S_MAX, PAUSE_STEPS_MAX = 0.05, 2
STOP_S_MAX = 3.0
TEMPLATE_S_MAX = 120.0  # until tasks can be forked from it
OWN_PROCESSES_MAX, OWN_MB_MAX = (
    0,
    1.0,
)  # of procsv's own, for three more tasks: its needs vary this much anyway
ARMS: dict[Arm, str] = {"procsv": "procsv launch", "monitored": "a shell loop a task, tf Monitored"}

COLUMNS = (
    Column("arm", "supervisor"),
    Column("worker_s", "worker killed:\nits first step", "s", 2),
    Column("chief_s", "chief killed:\nits first step", "s", 2),
    Column("chief_lost", "steps of all\nthat are lost", "", 0),
    Column("pause_ms", "longest pause\nof the others", "ms", 0),
    Column("server_s", "server killed:\nall train", "s", 2),
    Column("server_lost", "steps lost", "", 0),
    Column("gang_s", "one of two in step\nkilled: both train", "s", 2),
    Column("gang_lost", "steps lost", "", 0),
    Column("stop_s", "SIGTERM to\nall ended", "s", 2),
)


@dataclass(slots=True)
class Found:
    """The results of all kills of one arm."""

    worker_s: list[float] = field(default_factory=list)
    chief_s: list[float] = field(default_factory=list)
    chief_lost: list[int] = field(default_factory=list)
    pause_s: list[float] = field(default_factory=list)  # the longest one, for each kill of a worker or the chief
    server_s: list[float] = field(default_factory=list)
    server_lost: list[int] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)  # one task's median before each kill
    rate: list[float] = field(default_factory=list)  # global steps a second before a server is killed
    stop_s: list[float] = field(default_factory=list)
    gang_s: list[float] = field(default_factory=list)
    gang_lost: list[int] = field(default_factory=list)
    gang_rate: list[float] = field(default_factory=list)  # steps a second before a member is killed
    own: list[Own] = field(default_factory=list)  # beside the four tasks
    own_of_one: list[Own] = field(default_factory=list)  # beside the same program as a single task


def measure(settings: Settings) -> Table:
    table = Table(
        "group", f"A chief, two workers, a server; {MB:g} MB on the server; each task killed in turn", COLUMNS
    )
    args = program_args(mb=MB, variables=10, work=WORK, pause_s=PAUSE_S, save_s=SAVE_S)
    found: dict[Arm, Found] = defaultdict(Found)
    repeats, chance = settings.repeats_or(usual=3), Random(3)
    for repeat in range(repeats):
        moments_s = [TRAIN_S + TRAIN_MORE_S * chance.random() for _ in range(3)]
        for arm, name in ARMS.items():
            settings.say(f"group: {name}, {repeat + 1} of {repeats}")
            options = ("--snapshot-secs", f"{SNAPSHOT_S:g}") if arm == "procsv" else ()
            with group_running(SERVED, arm, args, options) as group:
                if arm == "procsv":
                    found[arm].own.append(_own_of(group))
                _kill_each(group, moments_s, found[arm])
                if arm == "procsv":
                    found[arm].stop_s.append(_stop(group))
            if arm == "procsv":
                settings.say(f"group: one task, {name}, {repeat + 1} of {repeats}")
                with group_running(ALONE, arm, args, options) as alone:
                    found[arm].own_of_one.append(_own_of(alone))
                    _stop(alone)
            settings.say(f"group: two tasks in step, {name}, {repeat + 1} of {repeats}")
            with group_running(IN_STEP, arm, args, options) as gang:
                _kill_members(gang, moments_s, found[arm])
                if arm == "procsv":
                    _stop(gang)
    table.rows += [_row(name, found[arm]) for arm, name in ARMS.items()]
    ours = found["procsv"]
    table.notes += [
        f"a step of a task takes {statistics.median(ours.step_s) * 1e3:.0f} ms; checkpoints every {SAVE_S:g} s, snapshots of procsv"
        f" every {SNAPSHOT_S:g} s; {TRAIN_S:g} to {TRAIN_S + TRAIN_MORE_S:g} s of training before each kill.",
        f"of procsv's own: {_told(ours.own)} beside the four tasks, {_told(ours.own_of_one)} beside the same program as a single task.",
    ]
    table.bars += _bars(ours, found["monitored"])
    return table


def _own_of(group: Group) -> Own:
    """Measure what runs beside the tasks, once there is a template for them."""
    journal = group.logdir / "procsv" / "journal.jsonl"
    if not group.wait_until(lambda: '"standby_ready"' in journal.read_text(), TEMPLATE_S_MAX):
        raise group.failed(f"no template within {TEMPLATE_S_MAX:.0f} s")
    group.listen(TRAIN_S)
    return measure_own(group.process.pid, [marks.last.pid for marks in group.marks.values()])


def _told(own: list[Own]) -> str:
    count, mb, template_mb = (statistics.median(values) for values in zip(*map(astuple, own), strict=True))
    return f"{count:.0f} processes, of which watchdog and services have {mb:.0f} MB (PSS) and the template {template_mb:.0f} MB"


def _kill_each(group: Group, moments_s: list[float], found: Found) -> None:
    """Kill a worker, then the chief, then the server."""
    for task, moment_s in zip((WORKER, CHIEF, SERVER), moments_s, strict=True):
        begin_s = time.monotonic()
        group.listen(moment_s)
        steps = [seconds for each in SERVED.training for seconds in group.pauses(each, begin_s, time.monotonic())]
        found.step_s.append(statistics.median(steps))
        pid, first_step = group.marks[task].last.pid, group.step_before(begin_s)
        begun_s, dead_s = group.kill(task)
        last_step = group.step_before(begun_s)
        if task == SERVER:
            found.rate.append((last_step - first_step) / (begun_s - begin_s))
            firsts = group.wait_for_all(dead_s + IN_FLIGHT_S)
            found.server_s.append(max(mark.time_s for mark in firsts) - begun_s)
            found.server_lost.append(max(0, last_step - min(mark.step for mark in firsts) + 1))
            continue
        first = group.wait_for_another(task, pid)
        group.listen(1.0)
        others = [
            seconds for each in SERVED.training if each != task for seconds in group.pauses(each, begun_s, first.time_s)
        ]
        found.pause_s.append(max(others))
        (found.chief_s if task == CHIEF else found.worker_s).append(first.time_s - begun_s)
        if task == CHIEF:
            found.chief_lost.append(max(0, last_step - first.step + 1))


def _kill_members(gang: Group, moments_s: list[float], found: Found) -> None:
    """Kill the member whose state is not saved, then the other."""
    for task, moment_s in zip((OTHER, WORKER), moments_s, strict=False):
        begin_s = time.monotonic()
        gang.listen(moment_s)
        first_step, pids = gang.step_before(begin_s), {gang.marks[each].last.pid for each in IN_STEP.training}
        begun_s, _ = gang.kill(task)
        last_step = gang.step_before(begun_s)
        firsts = gang.wait_for_all(begun_s, but=pids)
        found.gang_rate.append((last_step - first_step) / (begun_s - begin_s))
        found.gang_s.append(max(mark.time_s for mark in firsts) - begun_s)
        found.gang_lost.append(max(0, last_step - min(mark.step for mark in firsts) + 1))


def _stop(group: Group) -> float:
    """Send SIGTERM to the watchdog; return the seconds until all have ended."""
    group.listen(TRAIN_S)
    begun_s = time.monotonic()
    group.process.send_signal(signal.SIGTERM)
    code = group.process.wait(END_S_MAX)
    if code != os.EX_TEMPFAIL:
        raise group.failed(f"exit code {code} after SIGTERM, not {os.EX_TEMPFAIL}")
    return time.monotonic() - begun_s


def _row(name: str, found: Found) -> dict[str, Cell]:
    return {
        "arm": name,
        "worker_s": Figure.of(found.worker_s),
        "chief_s": Figure.of(found.chief_s),
        "chief_lost": Figure.of(found.chief_lost),
        "pause_ms": Figure.of(seconds * 1e3 for seconds in found.pause_s),
        "server_s": Figure.of(found.server_s),
        "server_lost": Figure.of(found.server_lost),
        "gang_s": Figure.of(found.gang_s),
        "gang_lost": Figure.of(found.gang_lost),
        "stop_s": Figure.of(found.stop_s),
    }


def _bars(ours: Found, theirs: Found) -> list[Bar]:
    step_s = statistics.median(ours.step_s)
    lost_max = math.ceil(SNAPSHOT_S * statistics.median(ours.rate)) + BOUNDARY_STEPS * len(SERVED.training)
    gang_lost_max = math.ceil(SNAPSHOT_S * statistics.median(ours.gang_rate)) + BOUNDARY_STEPS
    bars = []
    for what, mine, loops, share in (
        ("worker SIGKILL to its first step", ours.worker_s, theirs.worker_s, SHARE_MAX),
        ("chief SIGKILL to its first step", ours.chief_s, theirs.chief_s, SHARE_MAX),
        ("server SIGKILL to the first step of all", ours.server_s, theirs.server_s, SERVER_SHARE_MAX),
        ("SIGKILL of one of two in step to a step of both", ours.gang_s, theirs.gang_s, SHARE_MAX),
    ):
        how = f"{share} of the shell loops = "
        bars.append(Bar.at_most(what, share * statistics.median(loops), statistics.median(mine), "s", 2, how))
    pause_ms_max = (PAUSE_STEPS_MAX * step_s + PAUSE_S_MAX) * 1e3
    more = [
        (many.processes - one.processes, many.mb - one.mb) for many, one in zip(ours.own, ours.own_of_one, strict=True)
    ]
    processes, megabytes = (statistics.median(values) for values in zip(*more, strict=True))
    return [
        *bars,
        Bar.at_most("three tasks more: processes of procsv's own", OWN_PROCESSES_MAX, processes, "more", 0),
        Bar.at_most("three tasks more: memory (PSS) of watchdog and services", OWN_MB_MAX, megabytes, "MB more"),
        Bar.at_most("chief SIGKILL, server alive: steps lost, at most", 0, max(ours.chief_lost), "steps", 0),
        Bar.at_most(
            "longest pause of the others, median of kills", pause_ms_max, statistics.median(ours.pause_s) * 1e3, "ms"
        ),
        Bar.at_most("server SIGKILL: steps lost, at most", lost_max, max(ours.server_lost), "steps", 0),
        Bar.at_most("one of two in step: steps lost, at most", gang_lost_max, max(ours.gang_lost), "steps", 0),
        Bar.at_most("SIGTERM to all ended, with the last save", STOP_S_MAX, max(ours.stop_s), "s", 2),
    ]
