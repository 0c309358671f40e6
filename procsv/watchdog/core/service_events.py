"""Handle the events of the services, and the consequences of their deaths.

Used by run.py. Pure. services.py supervises each single service.
"""

from __future__ import annotations

from procsv.base.errors import ProcsvBug
from procsv.base.identity import TaskId
from procsv.base.journal import entries
from procsv.ipc.messaging import checkpoint_messages, messages, watchdog_messages
from procsv.watchdog.core.actions import Say, StartAttempt, Tell, WriteEntry
from procsv.watchdog.core.cluster.roster import Roster
from procsv.watchdog.core.end.closing import Closing
from procsv.watchdog.core.end.ending import Ending
from procsv.watchdog.core.events import Ended, FileState, NotStarted, Said, Ticked
from procsv.watchdog.core.run_files import RunFilesWatch
from procsv.watchdog.core.services import Saves, ServiceState, ServiceSupervisor


class ServiceEvents:
    def __init__(self, roster: Roster, ending: Ending, closing: Closing) -> None:
        self._roster, self._ending, self._closing, self._out = roster, ending, closing, roster.out
        self._services, self._chief = roster.services, roster.chief
        self._told_ended = 0  # the attempt of the chief whose death was reported to the service that keeps its state
        self.saves = Saves()
        self.run_files = RunFilesWatch()
        self._looked_at: dict[TaskId, int] = {}  # the process number of each service at the last check of its files

    # -- processes -----------------------------------------------------------------------------------------
    def start_due(self, now_s: float) -> None:
        for service in self._services.values():
            if service.is_due(now_s):
                self._out.append(StartAttempt(service.task, service.start(now_s)))

    def not_started(self, event: NotStarted, now_s: float) -> None:
        text = f"cannot start the {event.task} service: {event.error}; trying again"
        self._out.append(Say(text, is_bad=True))
        self._services[event.task].not_spawned(now_s)

    def ended(self, event: Ended, now_s: float) -> None:
        service = self._services[event.task]
        if event.incarnation != service.incarnation:
            return
        if event.beat is not None:
            service.beat(event.beat)
        if service is self._roster.keeper:
            self._told_ended = 0
        exited = service.exited(event, service.cause(event))
        service.ended(event.exit, self._closing.is_needed(service, now_s), now_s)
        self._out.append(WriteEntry(exited, event.task, event.incarnation))
        if service.state is ServiceState.LOST:
            why = f"{service.why_lost}; what it said: {event.log}"
            self._out += [Tell(task, watchdog_messages.ServiceLost(service.task, why)) for task in self._roster.tasks]
            self._ending.service_lost(service, why, now_s, event.last_lines)
        elif service.restart_s is not None:
            how = f"{event.exit}, by the fault plan" if event.fault else str(event.exit)
            text = f"the {service.task} service ended ({how}); starting it again, training goes on"
            self._out.append(Say(text, is_bad=True))

    def ticked(self, event: Ticked, now_s: float) -> None:
        for name, service in self._services.items():
            self._out += service.watch(event.beats.get(name), event.doing.get(name, ""), now_s)

    # -- what they say -------------------------------------------------------------------------------------
    def said(self, said: Said, now_s: float) -> None:
        service = self._services[said.task]
        if said.incarnation != service.incarnation:
            return
        match said.body:
            case checkpoint_messages.Durable() as news:
                self._durable(news, service)
            case checkpoint_messages.SaveFailed() as news:
                self._out += self.saves.failed(news, service.incarnation, now_s, self._chief.durable_step)
            case checkpoint_messages.Unwritable() as news:
                self._out += self.saves.unwritable(news, service.incarnation, self._chief.step)
            case checkpoint_messages.Rejected(path, why):
                rejected = entries.CheckpointRejected(path=path, why=why)
                self._out.append(WriteEntry(rejected, service.task, service.incarnation))
                self._out.append(Say(f"the checkpoint {path} fails its checks and is set aside: {why}", is_bad=True))
            case watchdog_messages.FlushDone() as news:
                self._settled(news, said.answers, now_s)
            case messages.Ack():
                pass
            case body:
                raise ProcsvBug(f"{type(body).__name__} has no handler")

    def _durable(self, news: checkpoint_messages.Durable, service: ServiceSupervisor) -> None:
        if self.saves.is_news(news):
            service.history.worked()
            self._out += self.saves.durable(news, service.incarnation)
            for task in self._roster.tasks.values():
                task.durable(news)

    def _settled(
        self,
        news: watchdog_messages.FlushDone,
        answers: watchdog_messages.TrainerExited | watchdog_messages.Finish | None,
        now_s: float,
    ) -> None:
        if isinstance(answers, watchdog_messages.TrainerExited):
            self._out += self._chief.settled(news, answers, now_s)
            self._roster.gang.settled(now_s)
        elif news.error:
            self._chief.last_save.fail(news.error)

    def tell_death(self) -> None:
        """Tell the service that keeps the chief's state of the chief's death, once per process of
        that service.
        """
        ended, keeper = self._chief.unsettled, self._roster.keeper
        if keeper is None:
            self._chief.last_save.nobody_keeps()
        elif ended is not None and keeper.is_up and self._told_ended != ended.incarnation:
            self._told_ended = ended.incarnation
            self._out.append(Tell(keeper.task, ended))

    # -- what they have made -------------------------------------------------------------------------------
    def run_files_checked(self, states: tuple[FileState, ...], now_s: float) -> None:
        """Watch the files of a service while it serves: it makes them when it begins, and removes
        them when it ends.

        A service that was restarted between two checks has new files; nothing has removed the old
        ones.
        """
        for service in self._services.values():
            is_serving = service.state is ServiceState.SERVING
            if not is_serving or self._looked_at.get(service.task) != service.incarnation:
                self.run_files.forget_files(service.task, states)
                self._looked_at[service.task] = service.incarnation
            if not is_serving:
                states = tuple(state for state in states if state.owner != service.task)
        self._out += self.run_files.check_files(states, now_s)
