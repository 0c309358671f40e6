"""Run the summary service of a member's machine, which writes the event files of the local task.

Used by member_loop.py. core/services.py decides when it is restarted and whether it hangs, as on
the coordinator's machine. If the service is given up, the task trains on without event files. At
the end, or if this launch is killed, the service's lifeline closes. The service ends after its
clients, once all that they sent is in the files.
"""

from __future__ import annotations

import select

from procsv.base.clock import Clock
from procsv.base.identity import SUMMARY
from procsv.base.service_table import SERVICES
from procsv.ipc.messaging.watchdog_messages import ServiceLost
from procsv.ipc.shm.heartbeat import Phase
from procsv.ipc.shm.heartbeat_file import RunHeartbeats
from procsv.watchdog.core import actions
from procsv.watchdog.core.events import Ended
from procsv.watchdog.core.services import ServiceState, ServiceSupervisor
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.edge.console import Console
from procsv.watchdog.host.processes import Processes

END_MARGIN_S = 2.0  # on top of the grace period, which the service observes by itself


class OwnSummary:
    def __init__(self, processes: Processes, heartbeats: RunHeartbeats, console: Console, clock: Clock) -> None:
        self._processes, self._heartbeats, self._console, self._clock = processes, heartbeats, console, clock
        self._service = ServiceSupervisor(SERVICES[SUMMARY], Settings(processes.start.settings))

    def start(self) -> None:
        number = self._service.start(self._clock.monotonic())
        try:
            self._heartbeats.follow_heartbeat(SUMMARY, number)
            self._service.pid = self._processes.spawn(SUMMARY, number, "")
        except OSError as error:
            self._heartbeats.drop_heartbeat(SUMMARY)
            self._console.say(f"cannot start the summary service: {error}; trying again", is_bad=True)
            self._service.not_spawned(self._clock.monotonic())

    def ended(self, ended: Ended) -> None:
        service = self._service
        if ended.beat is not None:
            service.beat(ended.beat)
        service.ended(ended.exit, True, self._clock.monotonic())
        if (lost := self.lost) is not None:
            self._console.say(f"{lost.why}; training goes on without event files", is_bad=True)
        else:
            text = f"the summary service ended ({ended.exit}); starting it again, training goes on"
            self._console.say(text, is_bad=True)

    @property
    def lost(self) -> ServiceLost | None:
        """The message that tells the task that the service is given up; None before that.

        From then on nothing that the task flushes is written.
        """
        service = self._service
        if service.state is not ServiceState.LOST:
            return None
        log = self._processes.start.paths.log(SUMMARY, service.incarnation)
        return ServiceLost(SUMMARY, f"{service.why_lost}; what it said: {log}")

    def check(self, now_s: float) -> None:
        """Restart the service when that is due, and end it if it hangs."""
        service = self._service
        if service.is_due(now_s):
            self.start()
        beat = self._heartbeats.read_heartbeats().get(SUMMARY)
        if beat is not None:
            service.beat(beat)
            if beat.phase is Phase.IDLE:
                service.ready(service.incarnation)
        doing = self._processes.doing(SUMMARY) if service.is_quiet else ""
        for action in service.watch(beat, doing, now_s):
            match action:
                case actions.Signal(task, number, signal):
                    self._processes.signal(task, number, signal)
                case actions.KillTree(task, number):
                    self._processes.kill_tree(task, number)
                case actions.Say(text, is_bad):
                    self._console.say(text, is_bad=is_bad)
                case _:
                    pass  # only the coordinator writes the journal

    def end(self) -> None:
        """Let the service end, after its clients have; kill it if it takes too long."""
        running = self._processes.running.get(SUMMARY)
        if running is None:
            return
        self._processes.cut_lifeline()
        limit_s = self._processes.start.settings.grace_s + END_MARGIN_S
        if not select.select([running.child.pidfd], [], [], limit_s)[0]:
            self._console.say("the summary service does not end; killing it", is_bad=True)
            self._processes.kill_tree(SUMMARY, running.incarnation)
            select.select([running.child.pidfd], [], [], END_MARGIN_S)
        self._processes.ended()
