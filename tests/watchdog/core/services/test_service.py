"""One service across its incarnations: its restarts, the name of its end, and when it is over."""

from __future__ import annotations

import signal

import pytest

from procsv.base.identity import CHECKPOINT
from procsv.base.outcome import NO_STEP, Exit
from procsv.base.service_table import SERVICES
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.events import Ended
from procsv.watchdog.core.restarts.causes import Cause
from procsv.watchdog.core.services import ServiceState, ServiceSupervisor
from procsv.watchdog.core.settings import Settings
from tests.support.journal import an_entry
from tests.support.naming import Naming

FAILED = Exit(1, None)
KILLED = Exit(None, signal.SIGKILL)
SEGFAULT = Exit(None, signal.SIGSEGV)


def starting() -> ServiceSupervisor:
    made = ServiceSupervisor(SERVICES[CHECKPOINT], Settings())
    again(made)
    return made


def serving() -> ServiceSupervisor:
    made = starting()
    made.ready(1)
    return made


def again(service: ServiceSupervisor) -> None:
    service.start(100.0)
    service.pid = 1000 + service.incarnation


def beat(work: int, phase: Phase = Phase.IDLE) -> Heartbeat:
    return Heartbeat(phase, NO_STEP, work, 0.0, 0.0)


def ended(exit: Exit, seen: Heartbeat | None = None) -> Ended:
    return Ended(CHECKPOINT, 1, exit, seen)


def test_a_failing_service_restarts_after_its_delay_and_not_before() -> None:
    service = starting()
    assert not service.is_due(1e9)
    service.ended(FAILED, True, 100.0)

    assert service.next_due_s() == pytest.approx(100.1)
    assert [service.is_due(now_s) for now_s in (100.0, 100.09, 100.11)] == [False, False, True]
    assert (service.state, service.state.word, service.pid) == (ServiceState.WAITING, "waiting", 0)


def test_a_service_that_the_system_would_not_start_is_retried_a_second_later() -> None:
    service = starting()
    service.not_spawned(100.0)
    assert [service.is_due(now_s) for now_s in (100.0, 100.9, 101.0)] == [False, False, True]


def test_only_the_newest_incarnation_becomes_ready_and_only_while_it_starts() -> None:
    service = starting()
    service.ready(0)
    assert not service.is_up
    service.ready(1)
    assert service.is_up
    service.finish()
    service.ready(1)
    assert (service.state, service.is_up, service.is_over) == (ServiceState.FINISHING, True, False)


def test_a_service_that_is_not_up_cannot_be_asked_to_finish() -> None:
    service = starting()
    service.finish()
    assert service.state is ServiceState.STARTING


def died(service: ServiceSupervisor, exit: Exit, times: int, is_ready: bool = False, phase: Phase = Phase.IDLE) -> int:
    """Return how often it came back."""
    for number in range(times):
        if is_ready:
            service.ready(service.incarnation)
        service.beat(beat(0, phase))
        service.ended(exit, True, 100.0)
        if service.state is ServiceState.LOST:
            return number
        again(service)
    return times


@pytest.mark.parametrize(
    ("exit", "is_ready", "phase", "comes_back"),
    [
        (SEGFAULT, False, Phase.IDLE, 4),
        (FAILED, False, Phase.IDLE, 4),
        (KILLED, False, Phase.IDLE, 19),
        (SEGFAULT, True, Phase.SAVE, 4),
        (KILLED, True, Phase.SAVE, 19),
        (FAILED, True, Phase.IDLE, 4),
        (SEGFAULT, True, Phase.IDLE, 30),
        (KILLED, True, Phase.IDLE, 30),
    ],
)
def test_deaths_while_starting_or_working_and_exits_count_and_a_signal_while_idle_does_not(
    exit: Exit, is_ready: bool, phase: Phase, comes_back: int
) -> None:
    service = starting()

    assert died(service, exit, 30, is_ready, phase) == comes_back
    assert service.is_over is (comes_back < 30)


def test_a_lost_service_reports_how_often_it_failed_and_its_last_end() -> None:
    service = starting()
    died(service, FAILED, 5)
    assert service.why_lost == Naming("checkpoint service", " 5 times ", " 300 s ", "exit code 1")


def test_a_finished_job_resets_the_failures_and_a_beat_without_a_job_does_not() -> None:
    service = starting()
    died(service, FAILED, 4)
    service.beat(beat(0))
    service.ended(FAILED, True, 100.0)
    assert service.state is ServiceState.LOST

    service = starting()
    died(service, FAILED, 4)
    service.beat(beat(1))
    assert died(service, FAILED, 4) == 4
    service.beat(beat(1))
    service.beat(beat(1))
    assert died(service, FAILED, 4) == 4, "the first job of this incarnation"


def test_a_service_asked_to_finish_is_over_with_exit_code_0_and_fails_with_another() -> None:
    for exit, state in ((Exit(0, None), ServiceState.ENDED), (FAILED, ServiceState.WAITING)):
        service = serving()
        service.finish()
        service.ended(exit, True, 100.0)
        assert service.state is state


def test_a_service_that_is_no_longer_needed_is_over_however_it_ended() -> None:
    service = serving()
    service.ended(FAILED, False, 100.0)
    assert (service.state, service.is_due(1e9)) == (ServiceState.ENDED, False)


def test_a_service_that_waits_for_its_start_is_dropped_and_a_running_one_is_not_over_by_that() -> None:
    service = starting()
    service.ended(FAILED, True, 100.0)
    service.drop()
    assert (service.state, service.is_due(1e9)) == (ServiceState.ENDED, False)
    service = serving()
    service.drop()
    assert service.state is ServiceState.SERVING


def test_the_end_of_a_service_has_the_right_name() -> None:
    service = serving()
    untold = Cause("exit-code", Naming("exit code 0 before"))
    assert service.cause(ended(Exit(0, None))) == untold
    assert service.cause(ended(FAILED)) == Cause("exit-code", "exit code 1")
    assert service.cause(ended(Exit(None, signal.SIGTERM))) == Cause("killed", "SIGTERM, sender unknown")
    service.finish()
    assert service.cause(ended(Exit(0, None))) == Cause("completed", "exit code 0")
    service.kill("too slow")
    assert service.cause(ended(KILLED)) == Cause("stopped", "SIGKILL, sent by procsv: too slow")
    assert service.state is ServiceState.ENDED


def test_the_journal_has_a_services_pid_and_the_step_of_its_last_beat() -> None:
    service, cause = serving(), Cause("killed", "SIGKILL, sender unknown")
    fields = {"pid": 1001, "code": None, "signal": "SIGKILL", "cause": "killed", "evidence": "SIGKILL, sender unknown"}

    assert service.exited(ended(KILLED), cause) == an_entry("exited", **fields, step=NO_STEP)
    seen = Heartbeat(Phase.SAVE, 7, 0, 0.0, 0.0)
    assert service.exited(ended(KILLED, seen), cause) == an_entry("exited", **fields, step=7)


def test_a_silent_service_is_examined_while_it_runs() -> None:
    service = starting()
    service.watch(None, "", 101.9)
    assert not service.is_quiet
    service.watch(None, "", 102.1)
    assert service.is_quiet
    service.pid = 0
    assert not service.is_quiet
