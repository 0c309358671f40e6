"""Close a run after its last task has ended: finish or end the services, and set the exit code.

Used by run.py and service_events.py. Pure.
"""

from __future__ import annotations

from procsv.base import exit_codes
from procsv.base.journal import entries
from procsv.base.outcome import NO_STEP
from procsv.ipc.messaging.watchdog_messages import Finish
from procsv.watchdog.core.actions import Action, KillTree, Quit, Say, Tell, WriteEntry
from procsv.watchdog.core.cluster import Roster
from procsv.watchdog.core.end.ending import Ending
from procsv.watchdog.core.reporting import wording
from procsv.watchdog.core.services import ServiceState, ServiceSupervisor
from procsv.watchdog.core.task.lifecycle import TaskState
from procsv.watchdog.core.task.stopping import TREE_S_MAX


class Closing:
    def __init__(self, roster: Roster, ending: Ending) -> None:
        self._roster, self._ending = roster, ending
        self.exit_code: int | None = None
        self.gave_up = ""  # why the run was given up
        self.is_stopped = False  # the run has ended before the training was complete

    def advance_closing(self, now_s: float) -> list[Action]:
        """End the services, then quit.

        Called after every event while no task runs, until the run has ended.
        """
        wanted = self._ending.begin_closing(now_s)
        end_s, services = self._ending.services_s, self._roster.services.values()
        assert end_s is not None, "a run that closes has a deadline"
        for service in services:
            if not service.is_over:
                wanted += self._end_service(service, is_late=now_s >= end_s)
        is_hopeless = now_s >= end_s + TREE_S_MAX  # killed processes still exist
        has_standby = any(task.standby_is_alive for task in self._roster.tasks.values())
        is_gone = not has_standby and all(one.is_over and not one.pid for one in services)
        return [*wanted, *self.quit(now_s)] if is_hopeless or is_gone else wanted

    def is_needed(self, service: ServiceSupervisor, now_s: float) -> bool:
        """Whether to restart a service that has just died."""
        if service.is_over:
            return False
        end_s = self._ending.services_s
        return end_s is None or (now_s < end_s and not self._has_nothing_to_do(service))

    def _end_service(self, service: ServiceSupervisor, is_late: bool) -> list[Action]:
        wanted: list[Action] = []
        if is_late or self._has_nothing_to_do(service):
            if service.pid:
                wanted.append(KillTree(service.task, service.incarnation))
                service.kill("it did not finish in time" if is_late else "it had nothing to do")
            service.drop()
        elif service.state is ServiceState.SERVING and self._may_finish(service):
            wanted.append(Tell(service.task, Finish()))
            service.finish()
        return wanted

    def _may_finish(self, service: ServiceSupervisor) -> bool:
        # The service that keeps the state first answers whether the chief's last state is on disk.
        return self._roster.chief.unsettled is None or not service.spec.keeps_state

    def _has_nothing_to_do(self, service: ServiceSupervisor) -> bool:
        """Whether the end of the run need not wait for this service.

        That is so if the service does not serve yet, and no task has ever connected or trained.
        """
        was_connected = any(task.was_connected for task in self._roster.tasks.values())
        return not service.is_up and not was_connected and not self._has_had_state()

    def _has_had_state(self) -> bool:
        """Whether the chief had anything to save.

        A short training may end before the watchdog has handled its Hello.
        """
        chief = self._roster.chief
        return max(chief.step, chief.snapshots.memory_step) != NO_STEP

    def quit(self, now_s: float) -> list[Action]:
        """Set the exit code. Return the last entries and messages of the run, and Quit."""
        wanted: list[Action] = []
        chief, ending = self._roster.chief, self._ending
        if chief.unsettled is not None and self._has_had_state():
            chief.last_save.fail("the checkpoint service did not finish in time")
        if why := self._why_failed():
            self.exit_code = exit_codes.GAVE_UP
            self.gave_up = why
            wanted += self._tell_failure(why)
        elif chief.life.state is TaskState.DONE:
            self.exit_code = exit_codes.DONE
            done = entries.RunCompleted(step=chief.step, goodput=chief.goodput.value(now_s))
            wanted.append(WriteEntry(done, chief.task, chief.incarnation))
        else:
            self.is_stopped, why = True, self._why_not_resumable()
            self.exit_code = self._code_without_state() if why else exit_codes.RESUMABLE
            source = ending.stop_source or "the program itself"
            stopped = entries.Stopped(step=chief.step, durable_step=chief.durable_step, source=source)
            wanted.append(WriteEntry(stopped, chief.task, chief.incarnation))
            if self.exit_code == exit_codes.GAVE_UP:
                self.gave_up = why
                wanted.append(Say(wording.starts_from_zero(why), is_bad=True))
        for task in self._roster.done_without():
            wanted.append(Say(wording.ended_without(task.task, task.gave_up), is_bad=True))
        restarts_elsewhere = ending.restarts_elsewhere and self.is_stopped
        return [*wanted, Quit(self.exit_code, bool(chief.unsaved) and not ending.is_taken, restarts_elsewhere)]

    def _why_not_resumable(self) -> str:
        """Return why the same command would start from the beginning; "" if it would resume."""
        chief = self._roster.chief
        if self._roster.settings.observes or self._ending.restarts_elsewhere or chief.progress.is_kept_elsewhere:
            return ""
        if chief.durable_step == NO_STEP:
            return "nothing was saved"
        if not chief.progress.keeps_training:
            return "only the state before the first step was saved"
        if chief.progress.habit.restores is False:
            return "the program restores nothing of what it saves"
        return "the program deletes its checkpoints when it starts" if chief.deletes_logdir else ""

    def _code_without_state(self) -> int:
        """Return the exit code of a stopped run that cannot be resumed.

        Code 75 would promise that the same command resumes. So the code is the program's own, if
        the program chose one after it was asked to stop. Otherwise it is 70, for example if a
        session of procsv ended the program, or if the run lost a machine.
        """
        chief = self._roster.chief
        last, is_asked = chief.record.last_exit, chief.stopping.is_told
        if last is None or last.code is None or not is_asked or self._ending.lost_host:
            return exit_codes.GAVE_UP
        if chief.progress.handles_stop:
            return last.code
        # A session of ours that is stopped before it has saved makes the program end with 0 or 75.
        is_ours = last.code == exit_codes.RESUMABLE or (last.code == exit_codes.DONE and chief.protection.has_session)
        return exit_codes.GAVE_UP if is_ours else last.code

    def _tell_failure(self, why: str) -> list[Action]:
        """Return the reports of why the run failed, without what was reported before."""
        if any(task.next.ended_run for task in self._roster.given_up()):
            return []
        chief = self._roster.chief
        told = WriteEntry(entries.GaveUp(why=why), chief.task, chief.incarnation)
        return [told] if why == self._ending.failure else [told, Say(f"gave up: {why}", is_bad=True)]

    def _why_failed(self) -> str:
        """Return why the run has failed; "" if it has not."""
        if given_up := self._roster.given_up():
            return given_up[0].gave_up
        if self._ending.failure:
            return self._ending.failure
        for task in self._roster.tasks.values():
            if task.life.state is TaskState.UNKILLABLE:
                return f"process {task.pid or f'(a child of the {task.task})'} does not exit after SIGKILL: a disk or a device blocks it"
        chief = self._roster.chief
        if unsaved := chief.unsaved or chief.snapshots.lost(chief.durable_step):
            return f"the newest state of the program is not on disk: {unsaved}"
        return ""
