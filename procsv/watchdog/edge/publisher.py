"""Publisher of a run: the journal, run.json, the status, the service manager's news, and the figures for TensorBoard.

Used by event_loop.py.  Decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from procsv.base.identity import STANDBY, WATCHDOG, TaskId
from procsv.base.journal.entries import Entry, Restarting
from procsv.base.journal.line import Line
from procsv.base.run.run_file import RunFile
from procsv.base.system.failpoints import declare, failpoint
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.report.status_object import Memory, StatusObject
from procsv.watchdog.core.run import Core
from procsv.watchdog.edge.environment import Environment
from procsv.watchdog.edge.status import Facts, run_file, status_object

declare("watchdog.back_off", "watchdog.rewriting_status")

RUN_JSON_S = 1.0  # how often run.json follows the step


class Publisher:
    def __init__(self, core: Core, facts: Facts, environment: Environment) -> None:
        self.facts = facts
        self._core, self._env, self._clock = core, environment, environment.clock
        self.run_json_s = self._clock.monotonic()  # when it is written next, whatever happens

    def journal(self, entry: Entry, task: TaskId, incarnation: int) -> None:
        self._env.records.append(entry, task, incarnation)
        if isinstance(entry, Restarting):
            failpoint("watchdog.back_off")
        line = Line(self._clock.wall(), str(task), incarnation, entry)
        self._env.event_hook.offer_event(line, self._clock.monotonic())

    def write_run(self) -> None:
        """Not fsynced: while a checkpoint goes to a busy disk, that would keep `status` and the dead waiting."""
        self.run_json_s = self._clock.monotonic() + RUN_JSON_S
        failpoint("watchdog.rewriting_status")
        run = self.run_file()
        self._env.manager.notify(run, self._clock.monotonic())
        self._env.records.write_run(run, durable=False)

    def run_file(self) -> RunFile:
        return run_file(self.facts, self._core, self._clock.monotonic(), self._clock.wall(), self._env.remote.mirror)

    def status(self) -> StatusObject:
        usage = {task: self._usage(task) for task in (WATCHDOG, *self._core.tasks, STANDBY, *self._core.services)}
        refused = self._env.sockets.server.refused + sum(
            client.refused for client in self._env.sockets.clients.values()
        )
        refused += self._env.remote.refused
        memory = Memory(**self._env.resources.host_memory())
        beats, now_s = self.read_beats(), self._clock.monotonic()
        return status_object(self.run_file(), self._core, beats, usage, memory, refused, now_s)

    def _usage(self, task: TaskId) -> Mapping[str, float | int]:
        return self._env.remote.usage(task) if self._env.remote.hosts(task) else self._env.processes.usage(task)

    def read_beats(self) -> dict[TaskId, Heartbeat]:
        return self._env.heartbeats.read() | self._env.remote.beats()

    def send_metrics(self, now_s: float) -> None:
        chief = self._core.chief
        metrics = self._env.records.metrics_due(now_s, chief.step, lambda: self._usage(chief.task).get("rss", 0))
        for task, service in self._core.services.items():
            if metrics is not None and service.spec.takes_events:
                self._env.sockets.clients[task].send(metrics)

    def close(self) -> RunFile:
        """The last state, for run.json; the service manager is told of it."""
        run = self.run_file()
        self._env.manager.notify(run, self._clock.monotonic())
        self._env.manager.close()
        return run
