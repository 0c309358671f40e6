"""A frozen or wedged service is found, dumped and restarted, and slow work is not a hang."""

from __future__ import annotations

import signal

import pytest
from msgspec.structs import replace

from procsv.base.identity import CHECKPOINT, SUMMARY, TRAINER, TaskId
from procsv.base.outcome import Exit
from procsv.base.signals import DUMP_SIGNAL, MAIN_DUMP_SIGNAL
from procsv.ipc.messaging.launch_settings import HANG_LIMITS_S, LaunchSettings
from procsv.ipc.shm.heartbeat import LOOP_AT_DISK, Heartbeat, Phase
from procsv.watchdog.core.events import STOPPED
from procsv.watchdog.core.hangs.service_liveness import LIMITS_S, ServiceLiveness
from procsv.watchdog.core.hangs.trainer_liveness import LOOK_GAP_S_MAX, Hang
from procsv.watchdog.core.services import ServiceState
from procsv.watchdog.core.settings import Settings
from tests.support.naming import Naming
from tests.watchdog.world import World

ABORTED = Exit(None, signal.SIGABRT)
DUMP = 'Current thread 0x00007e (most recent call first):\n  File "/p/services/runtime.py", line 12 in wedged\n'


def running(**changes: object) -> World:
    return World(**changes).ready().train(840)  # type: ignore[arg-type]


def wedge(world: World, task: TaskId, shows: str = "") -> None:
    """Let it be found and die of SIGABRT."""
    world.step(world.core.chief.step + 1)
    world.silent[task] = shows
    found = len(world.events("hang_detected"))
    world.signals.clear()
    while len(world.events("hang_detected")) == found:
        world.step(world.core.chief.step + 1)
    while (task, signal.SIGCONT) not in world.signals:
        world.step(world.core.chief.step + 1)
    world.stacks = DUMP
    world.end(task, ABORTED)
    del world.silent[task]
    world.stacks = ""
    world.advance(0.2)
    if task in world.alive:
        world.ready(task)


@pytest.mark.parametrize("task", [CHECKPOINT, SUMMARY])
def test_a_service_with_a_stuck_loop_is_ended_with_its_stacks_and_restarted(task: TaskId) -> None:
    world = running()
    wedge(world, task)

    found, ended = world.events("hang_detected")[0], world.events("exited")[0]
    assert (found.task, found.incarnation, found.entry.fields()["phase"]) == (task, 1, "idle")
    assert HANG_LIMITS_S["service"] <= found.entry.fields()["seconds"] < HANG_LIMITS_S["service"] + 2.0
    assert [number for to, number in world.signals if to == task] == [
        MAIN_DUMP_SIGNAL,
        DUMP_SIGNAL,
        signal.SIGABRT,
        signal.SIGCONT,
    ]
    assert (ended.task, ended.entry.fields()["cause"], ended.entry.fields()["signal"]) == (task, "hang", "SIGABRT")
    assert "its main loop" in ended.entry.fields()["evidence"]
    assert "wedged (/p/services/runtime.py:12)" in ended.entry.fields()["evidence"]
    assert [(entry.task, entry.incarnation) for entry in world.events("service_restarted")] == [(task, 2)]
    names = [one.entry.event for one in world.journal if one.task == task][1:]
    assert names == ["hang_detected", "exited", "spawned", "service_restarted"]
    assert world.alive[TRAINER].incarnation == 1
    assert not world.events("restarting")


def test_a_service_that_survives_sigabrt_is_killed() -> None:
    world = running()
    world.silent[SUMMARY] = ""
    while SUMMARY in world.alive and world.alive[SUMMARY].incarnation == 1:
        world.step(world.core.chief.step + 1)

    assert world.events("exited")[0].entry.fields()["signal"] == "SIGKILL"
    assert world.events("exited")[0].entry.fields()["cause"] == "hang"
    world.advance(0.2)
    assert world.alive[SUMMARY].incarnation == 2


def test_a_service_stopped_by_a_signal_is_woken_only_to_die_and_it_is_not_its_own_failure() -> None:
    world = running()
    for _ in range(10):
        wedge(world, SUMMARY, STOPPED)
        assert [number for to, number in world.signals if to == SUMMARY] == [
            MAIN_DUMP_SIGNAL,
            DUMP_SIGNAL,
            signal.SIGABRT,
            signal.SIGCONT,
        ]
    assert "(SIGSTOP)" in world.events("exited")[0].entry.fields()["evidence"]
    assert not world.core.is_ending


def test_a_service_that_hangs_five_times_without_a_finished_job_fails_the_run() -> None:
    world = running()
    for _ in range(5):
        wedge(world, CHECKPOINT)

    assert world.core.services[CHECKPOINT].state is ServiceState.LOST
    assert any("checkpoint service hung 5 times" in text for text in world.said)


def test_each_hang_without_a_finished_job_doubles_the_time_and_a_job_resets_it() -> None:
    world = running()
    for seconds in (60.0, 120.0, 240.0):
        wedge(world, CHECKPOINT)
        assert seconds <= world.last("hang_detected")["seconds"] < seconds + 2.0
    world.alive[CHECKPOINT].beat = Heartbeat(Phase.IDLE, 1, 1, world.now_s, 0.0)  # a checkpoint is durable
    world.step(world.core.chief.step + 1)
    wedge(world, CHECKPOINT)
    assert world.last("hang_detected")["seconds"] < HANG_LIMITS_S["service"] + 2.0


def test_with_hang_timeout_off_nothing_is_searched() -> None:
    world = running(settings=Settings(LaunchSettings(hang_timeout_s="off")))
    world.silent[CHECKPOINT] = ""
    world.advance(4000.0)
    assert not world.events("hang_detected")


def test_the_end_of_a_run_does_not_wait_forever_for_a_frozen_service() -> None:
    world = running(answers_settled=False)
    world.silent |= {CHECKPOINT: STOPPED, SUMMARY: STOPPED}
    world.crash(Exit(0, None))
    assert {(CHECKPOINT, signal.SIGCONT), (SUMMARY, signal.SIGCONT)} <= set(world.signals)
    world.advance(100.0)  # even that does not help

    assert [entry.incarnation for entry in world.events("service_restarted")] == [2, 2]
    world.silent.clear()
    world.answers_settled = True
    world.ready()
    assert world.exit_code == 0


# -- what is examined ------------------------------------------------------------------------------------------
class Watched:
    """A liveness that gets a beat every half second."""

    def __init__(self, launch: LaunchSettings | None = None) -> None:
        self.liveness, self.now_s = ServiceLiveness(launch or LaunchSettings()), 0.0
        self.liveness.start_watch(0.0)

    def show(self, beat: Heartbeat | None, seconds: float, beats: bool = False, at_disk: bool = False) -> str:
        """Show `beats` for that time if the loop runs. Return the problem found, or nothing."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.5
            if beats and beat is not None:
                beat = replace(beat, beat_s=self.now_s)
            self.liveness.read_heartbeat(beat, self.now_s, at_disk)
            if (hang := self.liveness.hang(self.now_s)) is not None:
                return hang.detail
        return ""


BUSY = Heartbeat(Phase.SAVE, 10, 0, 0.0, 0.0, moved=1)


def test_a_save_may_take_forever_as_long_as_it_moves() -> None:
    watched = Watched()
    for moved in range(1, 20):
        assert not watched.show(replace(BUSY, moved=moved), 290.0, beats=True)


def test_a_job_that_never_moves_is_found_and_one_that_cannot_show_movement_is_not() -> None:
    limit_s = LIMITS_S["restore"] / 2
    assert "its job has" in Watched().show(BUSY, limit_s + 2.0, beats=True)
    assert not Watched().show(BUSY, limit_s - 2.0, beats=True)
    assert not Watched().show(replace(BUSY, moved=0), 10 * limit_s, beats=True)


@pytest.mark.parametrize("beats", [True, False])
def test_time_in_disk_wait_does_not_count(beats: bool) -> None:
    watched = Watched()
    assert not watched.show(BUSY, 5000.0, beats, at_disk=True)
    assert not watched.show(BUSY, HANG_LIMITS_S["service"] - 1.0, beats)  # then the whole time starts again
    assert watched.show(BUSY, 1000.0, beats)


def test_a_loop_that_writes_by_itself_gets_the_time_of_a_save() -> None:
    writes = replace(BUSY, moved=LOOP_AT_DISK)
    assert not Watched().show(writes, LIMITS_S["save"] - 1.0)
    assert "its main loop" in Watched().show(writes, LIMITS_S["save"] + 2.0)


def test_a_service_that_never_starts_is_found_later_than_one_that_stops() -> None:
    watched = Watched()
    assert not watched.show(None, LIMITS_S["import"] - 1.0)
    assert "not begun" in watched.show(None, 2.0)


def test_time_without_observation_does_not_count() -> None:
    watched = Watched()
    watched.show(BUSY, 1.0, beats=True)
    watched.now_s += 3600.0
    assert not watched.show(BUSY, HANG_LIMITS_S["service"] - LOOK_GAP_S_MAX - 2.0)


# -- limits, just below and just above ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("beat", "beats", "limit_s", "told"),
    [
        (None, False, 300.0, Naming("not begun", " for 5 min 0 s; the limit is 5 min 0 s")),
        (replace(BUSY, moved=0), False, 60.0, Naming("its main loop", " for 1 min 0 s; the limit is 1 min 0 s")),
        (replace(BUSY, moved=LOOP_AT_DISK), False, 900.0, Naming("its main loop", " for 15 min 0 s; ", " 15 min 0 s")),
        (BUSY, True, 300.0, Naming("its job", " for 5 min 0 s; the limit is 5 min 0 s")),
    ],
)
def test_each_limit_may_be_reached_but_not_exceeded(
    beat: Heartbeat | None, beats: bool, limit_s: float, told: str
) -> None:
    watched = Watched()
    if beat is not None:
        watched.show(beat, 0.5, beats)
    assert not watched.show(beat, limit_s, beats)
    assert watched.show(beat, 0.5, beats) == told
    hang = watched.liveness.hang(watched.now_s)
    phase, step = (Phase.SAVE, 10) if beat is not None else (Phase.IMPORT, -1)
    assert hang == Hang(phase, limit_s + 0.5, limit_s, step, told)


@pytest.mark.parametrize(("restore", "save", "limit_s"), [(600.0, 100.0, 50.0), (100.0, 900.0, 50.0)])
def test_a_job_gets_half_the_time_of_a_restore_and_of_a_save(restore: float, save: float, limit_s: float) -> None:
    watched = Watched(LaunchSettings(hang_limits_s={"restore": restore, "save": save}))
    watched.show(BUSY, 0.5, beats=True)
    assert not watched.show(BUSY, limit_s, beats=True)
    assert watched.show(BUSY, 0.5, beats=True)


@pytest.mark.parametrize("beats", [True, False])
def test_a_process_is_examined_after_two_quiet_seconds(beats: bool) -> None:
    watched = Watched()
    watched.show(BUSY, 0.5, beats=True)
    assert watched.liveness.is_quiet is False
    watched.show(BUSY, 1.5, beats)
    assert watched.liveness.is_quiet is False
    watched.show(BUSY, 0.5, beats)
    assert watched.liveness.is_quiet is True
    watched.liveness.start_watch(watched.now_s)
    assert watched.liveness.is_quiet is False


def test_an_unreadable_beat_is_a_silent_loop_and_says_nothing_about_the_job() -> None:
    watched = Watched()
    watched.show(BUSY, 100.0, beats=True)
    assert not watched.show(None, 60.0)
    assert "its main loop" in watched.show(None, 0.5)


def test_five_seconds_of_a_pause_between_two_looks_count_and_none_of_a_stopped_clock() -> None:
    liveness = ServiceLiveness(LaunchSettings())
    liveness.start_watch(1000.0)
    for now_s in (1001.0, 1001.0, 1000.0, 1001.0, 2000.0):
        liveness.read_heartbeat(None, now_s)
    hang = ServiceLiveness.hang(liveness, 2000.0)
    assert hang is None
    for look in range(1, 60):
        liveness.read_heartbeat(None, 2000.0 + 100.0 * look)
    hang = liveness.hang(0.0)
    assert hang is not None
    assert hang.seconds == 302.0, "a second that was looked at twice, and 60 times 5 s"


@pytest.mark.parametrize(("hangs", "limit_s"), [(1, 120.0), (2, 240.0), (6, 3840.0), (7, 3840.0), (9, 3840.0)])
def test_a_limit_is_doubled_six_times_at_most(hangs: int, limit_s: float) -> None:
    watched = Watched()
    watched.show(BUSY, 0.5)
    for _ in range(hangs):
        watched.liveness.count_hang(Hang(Phase.IDLE, 61.0, 60.0, -1))
    assert watched.liveness.limit_s("service") == limit_s


@pytest.mark.parametrize(("work", "limit_s"), [(0, 120.0), (1, 60.0)])
def test_a_job_finished_before_the_first_beat_was_read_resets_the_limit_too(work: int, limit_s: float) -> None:
    liveness = ServiceLiveness(LaunchSettings())
    liveness.count_hang(Hang(Phase.IDLE, 61.0, 60.0, -1))
    liveness.start_watch(0.0)
    liveness.read_heartbeat(replace(BUSY, work=work), 0.5)
    liveness.read_heartbeat(replace(BUSY, work=work), 1.0)
    assert liveness.limit_s("service") == limit_s
