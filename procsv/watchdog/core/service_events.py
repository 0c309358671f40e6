"""Handle the events that concern services, and what a service's death means for the run.

Used by run.py. Pure. services.py supervises a single service.
"""

from __future__ import annotations

from procsv.base.errors import ProcsvBug
from procsv.base.identity import TaskId
from procsv.base.journal import entries
from procsv.ipc.messaging import checkpoint_messages, messages, watchdog_messages
from procsv.watchdog.core.actions import Action, Say, StartAttempt, Tell, WriteEntry
from procsv.watchdog.core.cluster import Roster
from procsv.watchdog.core.end.closing import Closing
from procsv.watchdog.core.end.ending import Ending
from procsv.watchdog.core.events import Ended, FileState, NotStarted, Said, Ticked
from procsv.watchdog.core.run_files import RunFilesWatch
from procsv.watchdog.core.services import Saves, ServiceState, ServiceSupervisor


class ServiceEvents:
    def __init__(self, roster: Roster, ending: Ending, closing: Closing) -> None:
        self._roster, self._ending, self._closing = roster, ending, closing
        self._services, self._chief = roster.services, roster.chief
        # The chief's attempt whose death was reported to the process that now keeps the chief's state; 0: none yet.
        self._death_reported = 0
        self.saves = Saves()
        self.run_files = RunFilesWatch()
        # For each service, the number of the process that had made the files at their last check.
        self._looked_at: dict[TaskId, int] = {}

    # -- processes -----------------------------------------------------------------------------------------
    def start_due(self, now_s: float) -> list[Action]:
        due = [service for service in self._services.values() if service.is_due(now_s)]
        return [StartAttempt(service.task, service.start(now_s)) for service in due]

    def not_started(self, event: NotStarted, now_s: float) -> list[Action]:
        self._services[event.task].not_spawned(now_s)
        return [Say(f"cannot start the {event.task} service: {event.error}; trying again", is_bad=True)]

    def ended(self, event: Ended, now_s: float) -> list[Action]:
        service = self._services[event.task]
        if event.incarnation != service.incarnation:
            return []
        if event.beat is not None:
            service.beat(event.beat)
        if service is self._roster.keeper:
            self._death_reported = 0
        exited = WriteEntry(service.exited(event, service.cause(event)), event.task, event.incarnation)
        service.ended(event.exit, self._closing.is_needed(service, now_s), now_s)
        if service.state is ServiceState.LOST:
            why = f"{service.why_lost}; what it said: {event.log}"
            told = [Tell(task, watchdog_messages.ServiceLost(service.task, why)) for task in self._roster.tasks]
            return [exited, *told, *self._ending.service_lost(service, why, now_s, event.last_lines)]
        if service.restart_s is None:
            return [exited]
        how = f"{event.exit}, by the fault plan" if event.fault else str(event.exit)
        text = f"the {service.task} service ended ({how}); starting it again, training goes on"
        return [exited, Say(text, is_bad=True)]

    def ticked(self, event: Ticked, now_s: float) -> list[Action]:
        wanted: list[Action] = []
        for name, service in self._services.items():
            wanted += service.watch(event.beats.get(name), event.doing.get(name, ""), now_s)
        return wanted

    # -- what they say -------------------------------------------------------------------------------------
    def said(self, said: Said, now_s: float) -> list[Action]:
        service = self._services[said.task]
        if said.incarnation != service.incarnation:
            return []
        match said.body:
            case checkpoint_messages.Durable() as news:
                return self._durable(news, service)
            case checkpoint_messages.SaveFailed() as news:
                return self.saves.failed(news, service.incarnation, now_s, self._chief.durable_step)
            case checkpoint_messages.Unwritable() as news:
                return self.saves.unwritable(news, service.incarnation, self._chief.step)
            case checkpoint_messages.Rejected(path, why):
                rejected = entries.CheckpointRejected(path=path, why=why)
                text = f"the checkpoint {path} fails its checks and is set aside: {why}"
                return [WriteEntry(rejected, service.task, service.incarnation), Say(text, is_bad=True)]
            case watchdog_messages.FlushDone() as news:
                return self._settled(news, said.answers, now_s)
            case messages.Ack():
                return []
            case body:
                raise ProcsvBug(f"{type(body).__name__} has no handler")

    def _durable(self, news: checkpoint_messages.Durable, service: ServiceSupervisor) -> list[Action]:
        if not self.saves.is_news(news):
            return []
        service.history.worked()
        for task in self._roster.tasks.values():
            task.durable(news)
        return self.saves.durable(news, service.incarnation)

    def _settled(
        self,
        news: watchdog_messages.FlushDone,
        answers: watchdog_messages.TrainerExited | watchdog_messages.Finish | None,
        now_s: float,
    ) -> list[Action]:
        if isinstance(answers, watchdog_messages.TrainerExited):
            return [*self._chief.settled(news, answers, now_s), *self._roster.gang.settled(now_s)]
        if news.error:
            self._chief.last_save.fail(news.error)
        return []

    def tell_death(self) -> list[Action]:
        """Report the chief's death to the service that saves the chief's state.

        If that service dies before it answers, report the death again to its next process. If the
        run has no such service, drop the question of whether the chief's last state is on disk.
        """
        ended, keeper = self._chief.unsettled, self._roster.keeper
        if keeper is None:
            self._chief.last_save.drop_question()
        elif ended is not None and keeper.is_up and self._death_reported != ended.incarnation:
            self._death_reported = ended.incarnation
            return [Tell(keeper.task, ended)]
        return []

    # -- what they have made -------------------------------------------------------------------------------
    def run_files_checked(self, states: tuple[FileState, ...], now_s: float) -> list[Action]:
        """Handle a check of the run's files. A service's files count only while the service serves.

        A service makes its files when it begins, and removes them when it ends. If it was restarted
        between two checks, its files are new. The old files were not lost, so they are forgotten.
        """
        for service in self._services.values():
            is_serving = service.state is ServiceState.SERVING
            if not is_serving or self._looked_at.get(service.task) != service.incarnation:
                self.run_files.forget_files(service.task, states)
                self._looked_at[service.task] = service.incarnation
            if not is_serving:
                states = tuple(state for state in states if state.owner != service.task)
        return self.run_files.check_files(states, now_s)
