"""The hang ladder through the whole core: stacks, SIGABRT, SIGKILL, and a process that cannot be killed."""

from __future__ import annotations

import signal
import sys

from procsv.base.identity import TRAINER
from procsv.base.outcome import Exit
from procsv.base.signals import DUMP_SIGNAL, MAIN_DUMP_SIGNAL
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.messages import Hello
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.events import Said, TreeGone
from procsv.watchdog.core.hangs.stack_parser import read_stacks, where_it_crashed, where_it_stood
from procsv.watchdog.core.settings import Settings
from tests.watchdog.world import World

ABORTED = Exit(None, signal.SIGABRT)
QUICK = Settings(LaunchSettings(hang_timeout_s=3.0))

LIBRARY = f"{sys.prefix}/lib/python3.11/site-packages/tensorflow/python/client/session.py"
DUMP = f"""\
Thread 0x00007f (most recent call first):
  File "{LIBRARY}", line 10 in wait
Current thread 0x00007e (most recent call first):
  File "{LIBRARY}", line 1477 in _call_tf_sessionrun
  File "/home/me/train.py", line 41 in one_step
  File "/home/me/train.py", line 90 in main
"""


def hung(**changes: object) -> World:
    world = World(settings=QUICK, **changes).ready().train(840)  # type: ignore[arg-type]
    world.advance(3.6)
    return world


def trainer_signals(world: World) -> list[int]:
    return [number for task, number in world.signals if task == TRAINER]


def test_a_hang_is_journaled_with_phase_seconds_and_step_and_begins_with_the_stacks() -> None:
    world = hung()

    found = world.last("hang_detected")
    assert (found["phase"], found["step"]) == ("step", 840)
    assert 3.0 < found["seconds"] < 5.0
    assert trainer_signals(world) == [MAIN_DUMP_SIGNAL]
    assert world.core.state_label == "hung"


def test_a_program_that_a_debugger_holds_does_not_hang() -> None:
    world = hung(traced=True)
    world.advance(3600.0)
    assert not world.events("hang_detected")

    world.traced = False
    world.advance(3.6)
    assert world.last("hang_detected")["step"] == 840


def test_the_ladder_goes_from_dump_to_abort_to_kill_on_time() -> None:
    world = hung(stubborn=True)
    world.advance(4.0)
    dumps = [MAIN_DUMP_SIGNAL, DUMP_SIGNAL]
    assert trainer_signals(world) == dumps
    world.advance(1.5)
    assert trainer_signals(world) == [*dumps, signal.SIGABRT, signal.SIGCONT]
    world.advance(9.0)
    assert trainer_signals(world)[-1] == signal.SIGCONT
    world.advance(1.5)
    assert trainer_signals(world)[-1] == signal.SIGKILL


def test_a_process_that_dies_during_its_stack_dump_has_died_of_its_hang() -> None:
    world = hung()
    world.advance(3.0)
    world.crash(Exit(None, signal.SIGSEGV))

    ended = world.last("exited")
    assert (ended["cause"], ended["signal"]) == ("hang", "SIGSEGV")
    assert "no progress for" in ended["evidence"]

    world.advance(2.0)
    world.ready().train(10)
    world.crash(Exit(None, signal.SIGSEGV))
    assert world.last("exited")["cause"] == "crashed"


def test_a_hang_is_a_failure_like_any_other_and_its_cause_names_the_frame() -> None:
    world = hung()
    world.stacks = DUMP
    world.advance(5.0)
    world.crash(ABORTED)

    ended = world.last("exited")
    assert (ended["cause"], ended["signal"], ended["step"]) == ("hang", "SIGABRT", 840)
    assert "one_step (/home/me/train.py:41)" in ended["evidence"]
    assert "_call_tf_sessionrun" in ended["evidence"]
    assert world.reports[-1].ended.stacks == DUMP
    assert world.reports[-1].sentence.startswith("trainer 1 (pid 1001) hung: no progress for")
    world.advance(2.0)
    assert world.alive[TRAINER].incarnation == 2
    assert world.core.chief.history.no_progress_count == 1


def test_a_frozen_process_is_reported_as_frozen() -> None:
    world = World(settings=QUICK, frozen=True).ready().train(840)
    world.advance(5.0)
    assert trainer_signals(world) == []  # its stacks are dumped when it is woken to die
    world.advance(5.0)
    assert trainer_signals(world) == [MAIN_DUMP_SIGNAL, DUMP_SIGNAL, signal.SIGABRT, signal.SIGCONT]
    world.crash(ABORTED)

    assert "SIGSTOP" in world.last("exited")["evidence"]


def test_row_09_a_trainer_that_continues_was_frozen_for_that_time_which_was_not_training() -> None:
    world = World(settings=QUICK).ready().train(840)
    world.frozen = True
    world.advance(2.0)
    assert world.events("frozen") == []
    world.frozen = False
    world.advance(0.6)
    world.step(841)
    (told,) = world.events("frozen")
    assert (told.incarnation, told.entry.fields()["step"]) == (1, 840)
    assert 1.5 <= told.entry.fields()["seconds"] <= 2.5
    assert any("program goes on: " in text for text in world.said)
    goodput = world.core.chief.goodput
    trained_s = goodput.value(world.now_s) * (world.now_s - goodput.started_s)
    assert trained_s <= world.now_s - goodput.started_s - 1.5

    world.frozen = True  # this time it is killed meanwhile
    world.advance(1.0)
    world.frozen = False
    world.crash()
    world.advance(3.0)
    world.train(850, 840)
    world.advance(3.0)
    assert len(world.events("frozen")) == 1


def test_row_10_a_killed_tree_that_stays_is_unkillable_and_nothing_starts_beside_it() -> None:
    world = hung(immortal=True)
    world.advance(15.5)
    assert trainer_signals(world)[-1] == signal.SIGKILL
    world.advance(31.0)
    assert world.core.state_label == "unkillable"
    assert any("SIGKILL" in text and "logdir" in text for text in world.said)
    assert len(world.events("spawned")) == 3

    world.stubborn = True
    world.crash()  # it dies after all
    assert world.last("exited")["cause"] == "hang"
    world.advance(5.0)
    assert TRAINER not in world.alive
    world.handle(TreeGone(TRAINER, 1))
    world.advance(0.1)
    assert world.alive[TRAINER].incarnation == 2


def test_a_hung_trainer_that_ends_by_itself_after_all_keeps_its_own_exit() -> None:
    world = hung()
    world.crash(Exit(75, None))

    assert world.last("exited")["cause"] == "exit-code"
    world.advance(0.1)
    assert world.alive[TRAINER].incarnation == 2


def test_a_stop_does_not_wait_for_a_trainer_that_hangs() -> None:
    world = hung()
    world.durable(840)
    world.stop()

    assert trainer_signals(world)[-1] == signal.SIGKILL
    assert world.exit_code == 75


def test_a_trainer_that_stops_slowly_is_not_hung() -> None:
    world = World(settings=QUICK).ready().train(840)
    world.stop()
    world.advance(10.0)

    assert not world.events("hang_detected")


def test_silence_makes_a_trainer_suspect_but_kills_nothing() -> None:
    world = World().ready().train(840)
    world.advance(60.0)

    assert world.core.chief.is_suspect(world.now_s)
    assert trainer_signals(world) == []
    world.step(841)
    assert not world.core.chief.is_suspect(world.now_s)


def test_a_start_that_hangs_is_found_too() -> None:
    world = World().ready()
    world.handle(Said(TRAINER, 1, Hello(1)))
    world.alive[TRAINER].beat = Heartbeat(Phase.RESTORE, -1, 0, world.now_s, 0.0)
    world.advance(1802.0)

    assert world.last("hang_detected")["phase"] == "restore"


def test_a_launch_that_learned_nothing_about_its_steps_gives_a_step_more_than_the_minimum() -> None:
    world = World().ready().train(840)
    world.advance(130.0)

    assert world.core.state_label == "running"


# -- reading the stacks ----------------------------------------------------------------------------------------
def test_the_main_thread_is_the_last_one_and_the_programs_own_frame_is_named() -> None:
    assert len(read_stacks(DUMP)) == 2
    assert where_it_stood(DUMP) == (
        f"one_step (/home/me/train.py:41), which had called _call_tf_sessionrun ({LIBRARY}:1477)"
    )


def test_only_the_first_dump_counts() -> None:
    text = DUMP + "Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n"
    text += '  File "/home/me/other.py", line 1 in later\n'

    assert "one_step" in where_it_stood(text)


def test_a_main_thread_asked_for_its_own_stack_is_the_main_thread_whatever_happens_to_the_others() -> None:
    main = 'Stack (most recent call first):\n  File "/home/me/train.py", line 41 in one_step\n'
    torn = "Thread 0x00007f (most recent call first):\n  File Fatal Python error: Segmentation fault\n\n"

    for others in (DUMP, torn, ""):
        assert where_it_stood(main + others) == "one_step (/home/me/train.py:41)"


def test_a_crash_is_where_the_current_thread_was() -> None:
    text = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
    text += '  File "/home/me/worker.py", line 7 in native\n\nThread 0x2 (most recent call first):\n'
    text += '  File "/home/me/train.py", line 90 in main\n\nExtension modules: numpy (total: 1)\n'

    assert where_it_crashed(text) == "native (/home/me/worker.py:7)"
    assert where_it_crashed(DUMP + text) == "native (/home/me/worker.py:7)"
    assert where_it_crashed(DUMP) == ""


def test_a_text_that_is_not_a_dump_has_no_frame() -> None:
    for text in ("", "nothing of the kind", "Thread 0x1 (most recent call first):\n"):
        assert where_it_stood(text) == ""
        assert where_it_crashed(text) == ""
