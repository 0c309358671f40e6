"""Write the sentences about the starts and ends of tasks, for the journal and people. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from procsv.base.cluster import EVALUATOR
from procsv.base.identity import TaskId
from procsv.base.journal import entries
from procsv.base.outcome import NO_STEP, STEPS, Exit, LastExit, SaveHabit
from procsv.base.units import show_count, show_duration, show_size
from procsv.ipc.messaging.watchdog_messages import FirstStepDone
from procsv.ipc.shm.heartbeat import Phase
from procsv.watchdog.core.actions import Say, WriteEntry
from procsv.watchdog.core.hangs.trainer_liveness import Hang, TooShort
from procsv.watchdog.core.settings import AdoptedTask

_VERBS = {
    "killed": "was killed by",
    "crashed": "crashed with",
    "hang": "hung:",
    "oom": "ran out of memory:",
}


def sentence(
    cause: str, evidence: str, step: int, *, serves: bool = False, habit: SaveHabit = STEPS, has_session: bool = True
) -> str:
    """Return the predicate of a sentence that says how a trainer ended.

    `step`: the last step read. `serves`: the trainer served variables to other tasks.
    """
    told = f"{_VERBS.get(cause, 'ended with')} {evidence}"
    if serves:
        return f"{told}, while it served"
    if habit.unit == "save" and step >= 0:
        return f"{told}, after save {step}"
    if step >= 0:
        return f"{told}, at step {step}"
    return f"{told}, before its first {'step' if has_session else 'session'}"


def where_from(memory_step: int, durable_step: int, habit: SaveHabit = STEPS) -> str:
    step = max(memory_step, durable_step)
    if step < 0 or habit.restores is False:
        return "from the beginning"
    return f"from {habit.unit} {step}" + (" in memory" if memory_step > durable_step else "")


def resumes(resume_step: int, habit: SaveHabit, *, was_seen: bool) -> str:
    """Name the state that the next start resumes from.

    `was_seen`: procsv has seen that the program has a session.
    """
    if habit.restores is False:
        return "from the beginning: the program restores nothing of what it saves"
    if resume_step < 0:
        return "from the beginning" if was_seen else "from what the program has saved by itself, if anything"
    return f"from {habit.unit} {resume_step}" + ("" if habit.restores else ", if the program restores it")


def lost(lost_steps: int, habit: SaveHabit, unsaved_s: float | None) -> str:
    """Return what a crash has cost.

    `unsaved_s`: how long the program trained after its last save, if its steps are its saves;
    otherwise None.
    """
    if unsaved_s is None:
        return f"{lost_steps} {habit.unit}s"
    since = f"{show_duration(unsaved_s)} of training since the last save"
    return f"{show_count(lost_steps, habit.unit)}, and {since}" if lost_steps else since


def greet(
    version: str, directory: str, logdir: str, memory_step: int, durable_step: int, habit: SaveHabit = STEPS
) -> tuple[str, str, str]:
    """Return the first lines of a launch: the version, what it resumes from, how to watch it.

    `logdir`: where checkpoints and events go, if not in the run's own `directory`.
    """
    is_new = max(memory_step, durable_step) < 0
    where, on_disk = shlex.quote(directory), " on disk" if memory_step <= durable_step else ""
    begins = "nothing is saved there yet"
    if not is_new:
        begins = f"the program resumes {where_from(memory_step, durable_step, habit)}{on_disk}"
        if not habit.restores:
            begins = f"{_left_to_it(memory_step, durable_step, habit)}"
    return (
        f"version {version}; run directory {directory}" + (f", checkpoints and events in {logdir}" if logdir else ""),
        begins,
        f"watch it with procsv top {where}; Ctrl-C saves and stops",
    )


def _left_to_it(memory_step: int, durable_step: int, habit: SaveHabit) -> str:
    """Describe the saved state, if procsv has not seen that the program restores it."""
    where = "in memory" if memory_step > durable_step else "on disk"
    saved = f"{habit.unit} {max(memory_step, durable_step)} is {where}"
    return (
        f"{saved}, for the program to restore"
        if habit.restores is None
        else f"{saved}, but the program did not restore it at its last start"
    )


def adopted(logdir: str, saved_step: int) -> str:
    """Report that the program has named its logdir.

    `saved_step`: of the newest checkpoint there.
    """
    found = f"; step {saved_step} is saved there" if saved_step >= 0 else ""
    return f"checkpoints and events go to {logdir}, as the program says{found}"


def training(
    recovered: FirstStepDone,
    death_s: float,
    last: LastExit | None,
    steps_lost_with_servers: int | None = None,
    unsaved_s: float | None = None,
) -> str:
    """Report the first step after a start.

    `last`: how the previous trainer of this launch ended; None for the first one.
    `steps_lost_with_servers`: the lost steps of all tasks, if several tasks train a model on
    parameter servers; otherwise None. `unsaved_s`: how long the previous trainer trained after its
    last save, if the program's steps are its saves; otherwise None.
    """
    after, unit = show_duration(max(0.0, recovered.ended_s - death_s)), recovered.habit.unit
    if last is None:
        return f"training at {unit} {recovered.step:,}, {after} after the start"
    redone = last.step - max(recovered.restored_step, 0) if steps_lost_with_servers is None else steps_lost_with_servers
    spent = [f"{redone:,} {unit if redone == 1 else f'{unit}s'}"] if redone > 0 else []
    spent += [] if unsaved_s is None else [show_duration(unsaved_s)]
    if spent:
        told = f", {' and '.join(spent)} redone"
    elif unit == "step" and (redone == 0 or last.step < 0):
        told = ", no step redone"
    else:  # the previous trainer got further than its last known step, so the cost is unknown
        told = ""
    return f"training again at {unit} {recovered.step:,} after {after}{told}"


def not_restored(step: int, habit: SaveHabit) -> str:
    """Warn that the program saves, but did not restore the state that was saved earlier.

    `step`: of that state.
    """
    there = f"{habit.unit} {step}" if step >= 0 else "any checkpoint"
    return (
        f"the program did not restore {there} when it started: it trains from the beginning, and may overwrite its "
        "checkpoints. A crash would lose all of this training. Restore before you train: manager.restore_or_initialize(), or "
        "checkpoint.restore(manager.latest_checkpoint)"
    )


def awaits_room(limit_s: float, memory_step: int, durable_step: int) -> str:
    """Report that a full disk has ended the program, and that procsv waits for room."""
    resumes = where_from(memory_step, durable_step)
    return f"the disk is full: procsv waits for room, then starts the program again {resumes}. It gives up after {show_duration(limit_s)}"


def only_in_memory(step: int, needed_bytes: int, free_bytes: int, directory: str) -> str:
    """Report that the run ends although this step is not on disk."""
    missing = max(0, needed_bytes - free_bytes)
    first = f"free {show_size(missing)} in {directory}, then " if missing else ""
    return (
        f"step {step} is only in this machine's memory: {first}run the same command, which saves it. A reboot loses it"
    )


def going_back(step: int) -> str:
    return f"crashed again and again from step {step}: resuming from the checkpoint before it; the steps between are redone"


def went_back(suspected_step: int, restored_step: int, began_step: int) -> str:
    """Report from which state the program resumed after a state had become suspect.

    The text follows that of `training`.
    """
    if restored_step >= suspected_step:
        return f"; there is no checkpoint before step {suspected_step}, so it resumed from that one again"
    text = f"; it went back from step {suspected_step} to step {max(restored_step, 0)}"
    return f"{text}, where this run began: all of its training is redone" if restored_step <= began_step else text


def starting_again(
    delay_s: float,
    memory_step: int,
    durable_step: int,
    *,
    keeps_state: bool = True,
    count: int = 0,
    habit: SaveHabit = STEPS,
    was_seen: bool = True,
    suspected_step: int = NO_STEP,
) -> str:
    """Announce the next start.

    `keeps_state`: the task resumes from saved state. `count`: the number of tasks that restart
    together; 0: only the task that ended. `was_seen`: procsv has seen that the program has a
    session. `suspected_step`: the checkpoint service looks for an older state than this, and uses
    this one only if there is no older one.
    """
    when = f"in {show_duration(delay_s)}" if delay_s else "at once"
    what = f"all {count} tasks" if count else "it"
    if not keeps_state:
        return f"starting {what} again {when}"
    if suspected_step != NO_STEP:
        return f"starting {what} again {when}, from {before_suspected(suspected_step, habit)}"
    if max(memory_step, durable_step) == NO_STEP and not was_seen:
        return f"starting {what} again {when}; procsv has no saved state of it"
    if habit.restores is None and max(memory_step, durable_step) >= 0:
        return f"starting {what} again {when}; {_left_to_it(memory_step, durable_step, habit)}"
    return f"starting {what} again {when}, {where_from(memory_step, durable_step, habit)}"


def before_suspected(step: int, habit: SaveHabit) -> str:
    """Name the state that is used instead of the suspected state at `step`."""
    return f"the newest checkpoint before {habit.unit} {step}, or from that {habit.unit} if there is none"


# For an observed program that was asked to stop, and continues.
NOT_STOPPED = "the program has not stopped yet; `procsv stop --now` kills it"


def stopping(
    source: str, now: bool, is_before_session: bool, grace_s: float, spare: str = "", *, is_handled: bool = False
) -> str:
    """Report that the run was asked to end.

    `source`: a signal or a command. `spare`: the host that replaces a machine when all tasks
    restart; "" if they do not. `is_handled`: all programs handle SIGTERM themselves.
    """
    who = {"SIGINT": "Ctrl-C", "SIGHUP": "the terminal was closed (SIGHUP)"}.get(source, source)
    again = "; Ctrl-C again ends it now" if source == "SIGINT" and not now else ""
    if now:
        return f"{who}: ending the program now"
    if is_handled:
        return f"{who}: the program handles SIGTERM itself, and has {show_duration(grace_s)} at most to end{again}"
    if is_before_session:
        return f"{who}: ending the program, which has no session yet and nothing to save{again}"
    follows = f"; then all tasks restart, with {spare} in its place" if spare else ""
    return f"{who}: saving and stopping the program, {show_duration(grace_s)} at most{again}{follows}"


def signal_came(name: str, *, is_passed_on: bool) -> str:
    if is_passed_on:
        return f"{name}: passed on to the program, which handles it"
    if name in ("SIGUSR1", "SIGUSR2"):
        cure = f"procsv launch --preempt-signal {name} makes it a preemption notice"
        return f"{name}: ignored, as the program has no handler for it; the run goes on. {cure}"
    return f"{name}: ignored; the run goes on"


def starts_from_zero(why: str) -> str:
    return f"{why}, so the same command starts from the beginning: exit code 70, not 75, which would tell a scheduler to resume the run"


def too_late(grace_s: float, own_grace_s: float | None) -> str:
    """Return why procsv kills a program that it has asked to stop.

    `own_grace_s`: the grace period of a preemption of this task; None: the run's applies.
    """
    if own_grace_s is not None:
        return f"it did not stop within {show_duration(own_grace_s)}"
    return f"it did not stop within its share of the {show_duration(grace_s)} of grace"


def too_late_without_server(stop_s: float) -> str:
    """Return why procsv kills a program that it has asked to stop and whose server had ended."""
    return f"a server that it needs had ended, and it did not stop within {show_duration(stop_s)}"


def waits_for_done(task: TaskId, done: Sequence[TaskId], seconds: float) -> str:
    """Warn that a session may wait for tasks that have ended with exit code 0."""
    return (
        f"{task} has waited for its session for {show_duration(seconds)}, and {', '.join(map(str, done))} ended with exit code 0: "
        "a session waits for all tasks, unless its config has device_filters"
    )


def goes_on(task: TaskId, incarnation: int, seconds: float, step: int) -> tuple[WriteEntry, Say]:
    """Report that a hung program, which was left alone, makes progress again."""
    text = f"the program makes progress again, after {show_duration(seconds)} without any"
    return WriteEntry(entries.HangOver(seconds=round(seconds, 1), step=step), task, incarnation), Say(text)


def does_nothing(task: TaskId, incarnation: int, hang: Hang) -> tuple[WriteEntry, Say]:
    """Report that a program without a session may hang."""
    phase, seconds = hang.phase.name.lower(), round(hang.seconds, 1)
    text = (
        f"{task} {incarnation} may hang: for {show_duration(hang.seconds)} it has used no CPU, made no system call and written "
        "nothing. It has no session that procsv protects, so procsv does not end it; `procsv restart` restarts it"
    )
    suspected = entries.HangSuspected(phase=phase, seconds=seconds, step=hang.step)
    return WriteEntry(suspected, task, incarnation), Say(text, is_bad=True)


def lingers(seconds: float) -> str:
    """Report that the program's main module has returned, but its process still exists."""
    return f"the program has ended, but its process has done nothing for {show_duration(seconds)} since: ending it"


def killed_after_its_end(exit: Exit, code: int) -> str:
    return f"the program had ended when {exit} hit its process: that counts as exit code {code}"


def limit_doubled(news: TooShort) -> str:
    phase, limit, now = news.phase.name.lower(), show_duration(news.limit_s), show_duration(news.new_limit_s)
    option = "--hang-timeout" if news.phase is Phase.STEP else f"--hang-limits {phase}=..."
    return (
        f"that was not a hang: phase {phase} took {show_duration(news.took_s)} and went on. Its limit is now {now} instead of {limit}; "
        f"{option} sets another"
    )


def unprotected(seconds: float, drop_in: bool, *, is_killed: bool = False) -> str:
    """Warn that a program has opened no session in the time allowed, or before it was killed."""
    return (
        f"the program {'had' if is_killed else 'has'} no session that procsv protects after {show_duration(seconds)}: procsv saves nothing of it. After a crash it resumes only "
        f"from what it saves and restores by itself. {_cure(drop_in)}"
    )


def _cure(drop_in: bool) -> str:
    training = (
        "a Keras model.fit, a tf.train.CheckpointManager, a tf.compat.v1.train.Supervisor or MonitoredTrainingSession"
    )
    cure = f"procsv protects only {training}" if drop_in else f"--drop-in protects {training}"
    child = "in a child process, their state is saved in the directory that they name, but procsv does not restart the child alone"
    return f"{cure}; {child}. If the program does not train, ignore this"


def ended(step: int, has_session: bool, drop_in: bool, unit: str = "step", *, was_complete: bool = False) -> str:
    """Report that a program has ended with exit code 0.

    `was_complete`: the previous launch had already completed the run at the same step.
    """
    if not has_session:
        return f"the program has ended. It had no session that procsv protects, so procsv saved nothing of it. {_cure(drop_in)}"
    if was_complete:
        return f"the program ran again and trained no step: the run was already complete{_at(step, unit)}"
    return f"training is complete{_at(step, unit)}"


def left_behind(processes: list[str]) -> str:
    """Report that procsv ended the processes that a program with exit code 0 had left."""
    return f"the program has ended, so procsv ended the processes that it had left running: {', '.join(processes)}. Let the program wait for its children"


def goes_on_after_coordinator(task: TaskId, one: AdoptedTask) -> str:
    return f"{task} {one.incarnation} (pid {one.pid} on {one.host}) kept running without a coordinator, and continues with this one"


# For a run with --min-workers whose tasks turn out to train in step.
NONE_IS_SPARED = (
    "the tasks take each step together, so --min-workers has no effect: the run ends if procsv gives up one of them"
)


def goes_on_without(task: TaskId, why: str, workers: int) -> str:
    """Report that `task` is given up, but not the run. `workers`: how many are left."""
    left = "" if task.role == EVALUATOR else f", with {show_count(workers, 'worker')} left"
    return f"gave up {task}: {why}. The run goes on without it{left}; the next launch tries it again"


def ended_without(task: TaskId, why: str) -> str:
    """Report at the end of a run that it continued without `task`, which had been given up."""
    return f"{task} was given up: {why}. The others continued without it"


def restarts_elsewhere(durable_step: int) -> str:
    """Report that the run restarts without a machine that is lost or must leave."""
    return f"restarting{f' from step {durable_step}' if durable_step >= 0 else ''} on the remaining machines"


def stopped(step: int, durable_step: int, *, deletes_logdir: bool, has_session: bool, habit: SaveHabit = STEPS) -> str:
    """Report that the run has ended before the program was complete.

    `deletes_logdir`: the program has deleted its logdir at a start in this run.
    """
    at = f"stopped{_at(step, habit.unit)}"
    if durable_step < 0 and not has_session:
        return (
            f"{at}; procsv saved nothing of it. The same command resumes only from what the program has saved by itself"
        )
    if durable_step < 0:
        return f"{at}; nothing is saved. The same command starts from the beginning"
    saved = f"{at}; {habit.unit} {durable_step} is on disk. The same command"
    if deletes_logdir:
        return f"{saved} starts from the beginning: the program deletes its directory when it starts, and the checkpoints with it"
    if habit.restores is False:
        return f"{saved} starts from the beginning: the program restores nothing of what it saves"
    return f"{saved} goes on from there{'' if habit.restores else ', if the program restores it'}"


def _at(step: int, unit: str = "step") -> str:
    return f" at {unit} {step}" if step >= 0 else ""
