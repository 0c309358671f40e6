"""What people and the journal are told of starts and ends, word for word."""

from __future__ import annotations

import pytest

from procsv.base.identity import TRAINER
from procsv.base.outcome import LastExit, SaveHabit
from procsv.ipc.messaging.messages import FirstStepDone
from procsv.ipc.shm.heartbeat import Phase
from procsv.watchdog.core.actions import Journal, Say
from procsv.watchdog.core.hangs.trainer_liveness import Hang
from procsv.watchdog.core.reporting import wording

HANG = Hang(Phase.IMPORT, 123.456, 120.0, -1)


def first_step(restored: int = 840, step: int = 841, ended_s: float = 112.3456) -> FirstStepDone:
    return FirstStepDone(restored, "checkpoint", "model.ckpt-840", step, ended_s)


def exited(step: int) -> LastExit:
    return LastExit(None, "SIGKILL", "killed", "SIGKILL, sender unknown", step)


@pytest.mark.parametrize(
    ("cause", "step", "text"),
    [
        ("killed", 7, "was killed by E, at step 7"),
        ("crashed", 0, "crashed with E, at step 0"),
        ("hang", -1, "hung: E, before its first step"),
        ("oom", 7, "ran out of memory: E, at step 7"),
        ("exit-code", 7, "ended with E, at step 7"),
    ],
)
def test_what_became_of_a_trainer_is_its_cause_and_its_step(cause: str, step: int, text: str) -> None:
    assert wording.sentence(cause, "E", step) == text


@pytest.mark.parametrize(
    ("memory_step", "durable_step", "where", "resumes"),
    [
        (-1, -1, "from the beginning", ""),
        (0, -1, "from step 0 in memory", "from step 0 in memory"),
        (-1, 0, "from step 0", "from step 0 on disk"),
        (7, 7, "from step 7", "from step 7 on disk"),
        (8, 7, "from step 8 in memory", "from step 8 in memory"),
        (6, 7, "from step 7", "from step 7 on disk"),
    ],
)
def test_a_start_is_from_the_newest_step_in_memory_or_on_disk(
    memory_step: int, durable_step: int, where: str, resumes: str
) -> None:
    assert wording.where_from(memory_step, durable_step) == where
    assert wording.starting_again(0.0, memory_step, durable_step) == f"starting it again at once, {where}"
    assert wording.starting_again(2.0, memory_step, durable_step) == f"starting it again in 2.0 s, {where}"
    begins = f"the program resumes {resumes}" if resumes else "nothing is saved there yet"
    assert wording.greet("1.0", "/my run", "", memory_step, durable_step) == (
        "version 1.0; run directory /my run",
        begins,
        "watch it with procsv top '/my run'; Ctrl-C saves and stops",
    )


def test_a_directory_for_checkpoints_that_is_not_the_runs_own_is_named() -> None:
    first, _, _ = wording.greet("1.0", "/run", "/logdir", -1, -1)
    assert first == "version 1.0; run directory /run, checkpoints and events in /logdir"
    assert wording.adopted("/l", -1) == "checkpoints and events go to /l, as the program says"
    assert wording.adopted("/l", 0) == "checkpoints and events go to /l, as the program says; step 0 is saved there"


@pytest.mark.parametrize(
    ("last_step", "restored", "redone"),
    [
        (845, 840, ", 5 steps redone"),
        (841, 840, ", 1 step redone"),
        (840, 840, ", no step redone"),
        (839, 840, ""),
        (3, -1, ", 3 steps redone"),
        (1840, 0, ", 1,840 steps redone"),
        (1, 0, ", 1 step redone"),
        (-1, -1, ", no step redone"),
    ],
)
def test_the_first_step_after_a_death_tells_what_was_made_again(last_step: int, restored: int, redone: str) -> None:
    text = wording.training(first_step(restored, 1841), 100.0, exited(last_step))
    assert text == f"training again at step 1,841 after 12 s{redone}"


def test_the_first_step_of_a_launch_is_told_from_the_start() -> None:
    assert wording.training(first_step(), 100.0, None) == "training at step 841, 12 s after the start"
    assert wording.training(first_step(), 112.4, None) == "training at step 841, 0.0 s after the start"


@pytest.mark.parametrize(("death_s", "seconds"), [(100.0, 12.346), (112.4, 0.0), (112.3, 0.046)])
def test_a_recovery_is_journaled_with_its_seconds_to_the_millisecond(death_s: float, seconds: float) -> None:
    assert wording.recovered_fields(first_step(), death_s) == {
        "step": 840,
        "source": "checkpoint",
        "from": "model.ckpt-840",
        "seconds": seconds,
    }


def test_a_restart_is_journaled_with_its_delay_and_a_reason_if_it_has_one() -> None:
    assert wording.restarting_fields(1.23456, 5, "") == {"delay": 1.235, "lost_steps": 5}
    assert wording.restarting_fields(0.0, 0, "by hand") == {"delay": 0.0, "lost_steps": 0, "why": "by hand"}


def test_a_state_that_crashes_again_and_again_is_named() -> None:
    assert wording.going_back(840) == (
        "what resumed from step 840 has crashed again and again: going back to the checkpoint before it"
    )


@pytest.mark.parametrize(
    ("source", "now", "is_before_session", "text"),
    [
        ("SIGINT", False, False, "Ctrl-C: saving and stopping the program, 25 s at most; again: now"),
        ("SIGINT", False, True, "Ctrl-C: ending the program, which has no session yet and nothing to save; again: now"),
        ("SIGINT", True, False, "Ctrl-C: ending the program now"),
        ("SIGTERM", False, False, "SIGTERM: saving and stopping the program, 25 s at most"),
        (
            "SIGHUP",
            False,
            True,
            "the terminal was closed (SIGHUP): ending the program, which has no session yet and nothing to save",
        ),
        ("procsv stop", True, True, "procsv stop: ending the program now"),
    ],
)
def test_a_stop_says_who_asked_for_it_and_what_becomes_of_the_state(
    source: str, now: bool, is_before_session: bool, text: str
) -> None:
    assert wording.stopping(source, now, is_before_session, 25.0) == text


def test_a_program_that_is_too_late_is_told_the_time_that_it_had() -> None:
    assert wording.too_late(25.0, None) == "it did not stop in its share of the grace of 25 s"
    assert wording.too_late(25.0, 0.0) == "it did not stop within 0.0 s"


def test_a_hang_that_is_over_is_told_and_journaled() -> None:
    told = wording.goes_on(TRAINER, 3, 123.456, 7)
    assert told == (
        Journal("hang_over", TRAINER, 3, {"seconds": 123.5, "step": 7}),
        Say("the program goes on: it had made no progress for 2 min 3 s", is_bad=False),
    )


def test_a_program_that_does_nothing_is_told_as_a_suspicion() -> None:
    journal, said = wording.does_nothing(TRAINER, 3, HANG)
    assert journal == Journal("hang_suspected", TRAINER, 3, {"phase": "import", "seconds": 123.5, "step": -1})
    assert said.text.startswith("trainer 3 may hang: for 2 min 3 s it has used no CPU")
    assert said.is_bad


ONLY_THESE = (
    "a model.fit of Keras, a tf.train.CheckpointManager, a tf.compat.v1.train.Supervisor or MonitoredTrainingSession"
)
CHILD = "one in a child process is saved in the directory that it names, but not restarted by itself"
KERAS = f"{CHILD}. Fine if it is no training"


@pytest.mark.parametrize(
    ("drop_in", "cure"),
    [
        (True, f"procsv sees {ONLY_THESE}, and no other; {KERAS}"),
        (False, f"--drop-in protects {ONLY_THESE}; {KERAS}"),
    ],
)
def test_a_program_without_a_session_is_told_what_would_give_it_one(drop_in: bool, cure: str) -> None:
    assert wording.unprotected(60.0, drop_in) == (
        "the program has no session of procsv's after 1 min 0 s: procsv saves nothing of it. After a crash it resumes only from what it saves "
        "and restores by itself. " + cure
    )
    assert wording.ended(7, False, drop_in) == (
        "the program has ended. It had no session of procsv's, so procsv saved nothing of it. " + cure
    )
    assert wording.ended(7, True, drop_in) == "training is complete at step 7"


@pytest.mark.parametrize(("step", "at"), [(-1, ""), (0, " at step 0"), (7, " at step 7")])
def test_an_end_names_the_last_step_and_whether_the_command_goes_on_from_a_saved_one(step: int, at: str) -> None:
    assert wording.ended(step, True, drop_in=False) == f"training is complete{at}"
    assert (
        wording.stopped(step, -1, deletes_logdir=False, has_session=True)
        == f"stopped{at}; nothing is saved. The same command starts from the beginning"
    )
    assert (
        wording.stopped(step, -1, deletes_logdir=False, has_session=False)
        == f"stopped{at}; procsv saved nothing of it. The same command resumes only from what the program has saved by itself"
    )
    assert (
        wording.stopped(step, 0, deletes_logdir=False, has_session=True)
        == f"stopped{at}; step 0 is on disk. The same command goes on from there"
    )


SAVES, UNSEEN, IGNORED = SaveHabit("save", True), SaveHabit("save", None), SaveHabit("save", False)


@pytest.mark.parametrize(
    ("habit", "again", "crash", "end", "greeting"),
    [
        (
            SAVES,
            "starting it again at once, from save 3",
            "from save 3",
            "save 3 is on disk. The same command goes on from there",
            "the program resumes from save 3 on disk",
        ),
        (
            UNSEEN,
            "starting it again at once; save 3 is on disk, for the program to restore",
            "from save 3, if the program restores it",
            "save 3 is on disk. The same command goes on from there, if the program restores it",
            "save 3 is on disk, for the program to restore",
        ),
        (
            IGNORED,
            "starting it again at once, from the beginning",
            "from the beginning: the program restores nothing of what it saves",
            "save 3 is on disk. The same command starts from the beginning: the program restores nothing of what it saves",
            "save 3 is on disk, and its last start did not restore it",
        ),
    ],
)
def test_a_state_that_the_program_restores_by_itself_is_promised_only_where_it_was_seen_to(
    habit: SaveHabit, again: str, crash: str, end: str, greeting: str
) -> None:
    assert wording.starting_again(0.0, -1, 3, habit=habit) == again
    assert wording.resumes(3, habit, was_seen=True) == crash
    stopped = wording.stopped(4, 3, deletes_logdir=False, has_session=True, habit=habit)
    assert stopped == f"stopped at save 4; {end}"
    assert wording.greet("1.0", "/run", "", -1, 3, habit)[1] == greeting


def test_of_a_program_that_procsv_has_not_seen_train_it_does_not_say_where_it_resumes() -> None:
    assert (
        wording.starting_again(1.0, -1, -1, was_seen=False)
        == "starting it again in 1.0 s; procsv has saved nothing of it"
    )
    assert wording.starting_again(1.0, -1, 7, was_seen=False) == "starting it again in 1.0 s, from step 7"
    assert "beginning" not in wording.resumes(-1, SaveHabit(), was_seen=False)
    assert "beginning" not in wording.greet("1.0", "/run", "", -1, -1)[1]
    assert (
        wording.sentence("killed", "SIGKILL", -1, has_session=False)
        == "was killed by SIGKILL, before its first session"
    )


@pytest.mark.parametrize(
    ("last_save", "unsaved_s", "redone"),
    [
        (1, 11.4, ", 11 s redone"),
        (3, 2.8, ", 2 saves and 2.8 s redone"),
        (2, 0.5, ", 1 save and 0.5 s redone"),
        (1, None, ""),
    ],
)
def test_where_a_step_is_a_save_the_time_since_the_last_one_is_said_to_be_redone(
    last_save: int, unsaved_s: float | None, redone: str
) -> None:
    first = FirstStepDone(1, "checkpoint", "ckpt-1", 2, 112.3456, habit=SAVES)
    assert (
        wording.training(first, 100.0, exited(last_save), None, unsaved_s)
        == f"training again at save 2 after 12 s{redone}"
    )
    assert wording.training(first, 100.0, None) == "training at save 2, 12 s after the start"
    assert wording.sentence("killed", "SIGKILL", 3, habit=SAVES) == "was killed by SIGKILL, after save 3"


def test_what_a_crash_has_cost_is_steps_or_the_time_since_the_last_save() -> None:
    assert wording.lost(15, SaveHabit(), None) == "15 steps"
    assert wording.lost(0, SAVES, 11.4) == "11 s of training since the last save"
    assert wording.lost(1, SAVES, 11.4) == "1 save, and 11 s of training since the last save"
    assert wording.restarting_fields(0.0, 0, "", 11.4) == {"delay": 0.0, "lost_steps": 0, "lost_seconds": 11.4}


def test_the_last_line_of_a_run_whose_state_is_in_memory_alone_says_how_to_keep_it() -> None:
    kept = "step 490 is only in this machine's memory"
    room = wording.only_in_memory(490, 21 * 2**20, 10 * 2**20, "runs/x")
    assert room == f"{kept}: free 11.0 MiB in runs/x, then run the same command, which saves it. A reboot loses it"
    assert (
        wording.only_in_memory(490, 1, 2, "runs/x")
        == f"{kept}: run the same command, which saves it. A reboot loses it"
    )
