"""Describe the current state of the run, and publish it: in run.json and by `procsv status`.

Used by event_loop.py. This module decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from procsv.base.identity import STANDBY, WATCHDOG, TaskId
from procsv.base.journal.entries import Entry, Restarting
from procsv.base.journal.line import Line
from procsv.base.run.run_file import RunFile
from procsv.base.system.failpoints import declare, failpoint
from procsv.base.system.processes import ProcessIdentity
from procsv.ipc.messaging.start import Start
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.report.status_object import Memory, Process, StatusObject, TaskStatus, status_of
from procsv.watchdog.core.run import Core
from procsv.watchdog.core.task.trainer import TrainerSupervisor
from procsv.watchdog.edge.environment import NO_COPY, Environment, Hosts, MemoryCopy
from procsv.watchdog.host.standby import Standby


class Facts(msgspec.Struct, frozen=True):
    """What is known when the run begins. Only the logdir may change later, by adoption."""

    start: Start
    watchdog: ProcessIdentity
    started_at: float  # Unix seconds
    program: str = ""  # as in run.json


def run_file(facts: Facts, core: Core, now_s: float, wall_s: float, copy: MemoryCopy = NO_COPY) -> RunFile:
    start, task, is_over = facts.start, core.chief, core.exit_code is not None
    waits = task.restart_s is not None and not core.is_ending
    return RunFile(
        run=start.run,
        target=start.target,
        args=start.args,
        program=facts.program,
        logdir=start.logdir,
        root=start.root,
        run_dir=start.run_dir,
        shm_dir=start.shm_dir,
        pid=facts.watchdog.pid,
        started=facts.watchdog.started,
        boot=facts.watchdog.boot,
        state=core.state_label,
        task=str(task.task),
        incarnation=task.incarnation,
        step=task.step,
        steps_total=task.progress.steps_total,
        fit=task.progress.fit,
        loss=task.progress.loss,
        importing=task.progress.importing,
        began_step=task.progress.began_step,
        durable_step=task.durable_step,
        memory_step=task.snapshots.memory_step,
        mirror_step=copy.step,
        mirror_host=copy.host,
        restarts=task.restarts,
        no_progress_count=task.history.no_progress_count,
        last_exit=task.record.last_exit,
        next_restart_in=round(max(0.0, task.restart_s - now_s), 3) if waits and task.restart_s is not None else None,
        awaits_room=not core.is_ending and any(one.next.awaits_room for one in core.tasks.values()),
        step_s=float(f"{task.hanging.liveness.steps.median_s:.4g}"),  # a small model's step takes a microsecond
        save_error=core.saves.error or task.snapshots.untaken or None,
        next_save_in=None if core.saves.try_s is None else round(max(0.0, core.saves.try_s - now_s), 3),
        ground_error=core.run_files.error or None,
        goodput=task.goodput.value(now_s),
        launch_goodput=task.goodput.of_launch(now_s),
        started_at=facts.started_at,
        written_at=wall_s,
        ended_at=wall_s if is_over else None,
        exit_code=core.exit_code,
        gave_up=core.gave_up,
        protected=task.protection.is_protected(is_over),
        habit=task.progress.habit,
    )


def status_object(
    run: RunFile,
    core: Core,
    beats: Mapping[TaskId, Heartbeat],
    usage: Mapping[TaskId, Mapping[str, Any]],
    memory: Memory,
    refused: int,
    now_s: float,
    standby: Standby,
) -> StatusObject:
    """Return what `procsv status --json` prints.

    `usage`: uptime, rss and cpu of every process, by task. `memory`: the machine's.
    """
    rows = [(WATCHDOG, run.pid, "running", "")]
    for name, task in core.tasks.items():
        rows.append((name, task.pid, _state(task, now_s), _phase(beats.get(name))))
    if standby.pid:
        rows.append((STANDBY, standby.pid, standby.state.word, ""))
    for name, service in core.services.items():
        rows.append((name, service.pid, service.state.word, _phase(beats.get(name))))
    trainer, has_several = beats.get(core.chief.task), len(core.tasks) > 1
    return status_of(
        run,
        running=True,
        processes=tuple(
            Process(role=str(task), pid=pid or None, state=state, phase=phase, **usage[task])
            for task, pid, state, phase in rows
        ),
        tasks=tuple(_task_status(core, task, beats.get(name), now_s) for name, task in core.tasks.items())
        if has_several
        else UNSET,
        generation=core.generation if has_several else UNSET,
        snapshots=trainer.snapshots.as_status() if trainer is not None else None,
        memory=memory,
        # Messages that their receivers dropped: invalid, too large, from another run or from an older attempt.
        dropped_messages=refused + sum(beat.refused for beat in beats.values()),
    )


def _task_status(core: Core, task: TrainerSupervisor, beat: Heartbeat | None, now_s: float) -> TaskStatus:
    awaited = core.awaited_by(task.task, now_s)
    return TaskStatus(
        task=str(task.task),
        host=core.settings.host_of(task.task) or None,
        state=_state(task, now_s),
        phase=_phase(beat),
        pid=task.pid or None,
        incarnation=task.incarnation,
        restarts=task.restarts,
        steps_per_s=task.steps_per_s,
        last_exit=task.record.last_exit,
        waits_for=None if awaited is None else str(awaited),
    )


def _state(task: TrainerSupervisor, now_s: float) -> str:
    return "suspect" if task.is_suspect(now_s) else task.state_label


def _phase(beat: Heartbeat | None) -> str:
    return beat.phase.name.lower() if beat is not None else ""


declare("watchdog.back_off", "watchdog.rewriting_status")

RUN_JSON_S = 1.0  # how often run.json is written to follow the step


class Publisher:
    """Publish journal, run.json, status and metrics, and report to the service manager."""

    def __init__(self, core: Core, facts: Facts, environment: Environment, hosts: Hosts) -> None:
        self.facts, self._hosts = facts, hosts
        self._core, self._env, self._clock = core, environment, environment.clock
        self.run_json_s = self._clock.monotonic()  # when to write run.json next, at the latest

    def journal(self, entry: Entry, task: TaskId, incarnation: int) -> None:
        self._env.records.append(entry, task, incarnation)
        if isinstance(entry, Restarting):
            failpoint("watchdog.back_off")
        line = Line(self._clock.wall(), str(task), incarnation, entry)
        self._env.event_hook.offer_event(line, self._clock.monotonic())

    def write_run(self) -> None:
        """Write run.json, and report to the service manager.

        There is no fsync. While the disk is busy, it would delay `status` and the handling of
        deaths.
        """
        self.run_json_s = self._clock.monotonic() + RUN_JSON_S
        failpoint("watchdog.rewriting_status")
        run = self.run_file()
        self._env.manager.notify(run, self._clock.monotonic())
        self._env.records.write_run(run, durable=False)

    def run_file(self) -> RunFile:
        return run_file(self.facts, self._core, self._clock.monotonic(), self._clock.wall(), self._memory_copy())

    def _memory_copy(self) -> MemoryCopy:
        return NO_COPY if self._hosts.remote is None else self._hosts.remote.memory_copy

    def status(self) -> StatusObject:
        usage = {task: self._usage(task) for task in (WATCHDOG, *self._core.tasks, STANDBY, *self._core.services)}
        refused = self._env.sockets.server.refused + sum(
            client.refused for client in self._env.sockets.clients.values()
        )
        refused += 0 if self._hosts.remote is None else self._hosts.remote.refused
        memory = Memory(**self._env.resources.host_memory())
        beats, now_s = self._hosts.beats(), self._clock.monotonic()
        return status_object(
            self.run_file(), self._core, beats, usage, memory, refused, now_s, self._hosts.local.standby
        )

    def _usage(self, task: TaskId) -> Mapping[str, float | int]:
        return self._hosts.of(task).usage(task)

    def send_metrics(self, now_s: float) -> None:
        chief = self._core.chief
        metrics = self._env.records.metrics_due(now_s, chief.step, lambda: self._usage(chief.task).get("rss", 0))
        for task, service in self._core.services.items():
            if metrics is not None and service.spec.takes_events:
                self._env.sockets.clients[task].send(metrics)

    def close(self) -> RunFile:
        """Return the last state, for run.json, and report it to the service manager."""
        run = self.run_file()
        self._env.manager.notify(run, self._clock.monotonic())
        self._env.manager.close()
        return run
