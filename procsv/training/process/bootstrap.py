"""Trainer bootstrap: join the run, then run TARGET as `python TARGET ARGS…` would.

The watchdog starts it, as a trainer or as a standby that becomes one (standby.py).  The program
finds `__main__`, `sys.argv`, `sys.path[0]` and the working directory as if the interpreter had
started it directly, and multiprocessing can spawn from it.  This module does not import TensorFlow:
the program does, or a standby that imports in advance what the program will import.  An exception of
the program is saved as last words for the crash report, and printed with the program's own
traceback.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from procsv.base import exit_codes
from procsv.base.cluster import PS, STEPLESS
from procsv.base.errors import UserError
from procsv.base.grace import FORCED_SHARE, HEAD_START_S, OWN_SHARE, TRAINER_SHARE
from procsv.base.identity import STANDBY, TRAINER, WATCHDOG
from procsv.base.journal.entries import PreemptNotice
from procsv.base.run.manifest import Reason
from procsv.base.service_table import SERVICES
from procsv.base.system.failpoints import declare, failpoint
from procsv.base.system.output import keep_output_going
from procsv.base.system.target import find_target
from procsv.base.units import show_duration
from procsv.ipc.messaging.start import Start, take_start
from procsv.ipc.messaging.watchdog_messages import Inject
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.process.after_import import call_after_import
from procsv.training.process.cache_locks import watch_caches
from procsv.training.process.distribution import watch_collectives, watch_servers
from procsv.training.process.drop_in import install
from procsv.training.process.import_record import EnvironmentRecorder, ImportNews
from procsv.training.process.log_rotation import LogRotation
from procsv.training.process.logdir_deletion import guard_other_trainings, watch_deletions
from procsv.training.process.program import READS_INPUT, allow_own_group, run_program, watch_exec, watch_input
from procsv.training.process.program_signals import ProgramSignals
from procsv.training.process.standby import StandbyProcess
from procsv.training.runtime.bounded_call import has_abandoned_calls
from procsv.training.runtime.context import Runtime, set_current
from procsv.training.runtime.last_words import exit_code_of, is_of_stop, may_be_within_a_step, write_last_words
from procsv.training.runtime.link import Link
from procsv.training.runtime.log import flush_output, say
from procsv.training.runtime.step_gate import StepGate

CONNECT_S_MAX = 2.0  # how long a program that still waits for its session may take to notice a stop
SIGNAL_ALONE_S = 0.1  # if the watchdog sends no message this long after a SIGTERM, the SIGTERM is a preemption notice

declare("trainer.import", "trainer.atexit")


def main() -> None:
    """Runs the target; ends the process with its exit code."""
    keep_output_going()
    start = take_start(TRAINER)
    if start.settings.malloc == "keep":
        # First, because imports start threads, and each thread may create an arena. The limit on arenas does not remove
        # existing ones, and every fork of a standby would inherit them.
        keep_memory(os.environ)
    recorder = EnvironmentRecorder()
    standby = StandbyProcess(start) if start.task == STANDBY else None
    if standby is not None:
        recorder.changes = standby.import_ahead()
    recorder.start_recording()
    if standby is not None and start.settings.standby == "hot":
        start = standby.run_ahead()
        signals = ProgramSignals(start)
        runtime = _make_runtime(
            start, signals, gate=lambda runtime: _join_run(runtime, signals, standby.become_trainer())
        )
    else:
        start = start if standby is None else standby.become_trainer()
        signals = ProgramSignals(start)
        runtime = _make_runtime(start, signals)
        _join_run(runtime, signals, start)
    # Of the tasks of one launch, one records its imports for the standby: the chief, or the only task of a member.
    news = ImportNews(runtime, start, recorder) if start.is_chief or start.is_member else None
    if news is not None:
        news.note_configuration()
    code = _run_target(runtime, start)
    if not (runtime.is_connected or runtime.is_ahead):
        sys.exit(code)  # this is a child that the program forked; its messages would be taken for the trainer's
    if news is not None:
        news.note_last_imports()
    if runtime.is_ahead:
        sys.exit(code)  # a hot standby whose program ended without a session never was a trainer
    if code == 0 and (runtime.stops.is_asked or signals.was_noticed()) and not runtime.stops.is_left_to_end_run:
        code = exit_codes.RESUMABLE  # asked to stop: there may be more to train
    runtime.end_program(code)
    end_run = partial(_end_run, runtime, signals)
    if has_abandoned_calls():  # they may wait forever for a lost server, and the interpreter's exit would wait for them
        _call_printing_errors(end_run)
        atexit._run_exitfuncs()
        flush_output()
        os._exit(code)
    _call_printing_errors(_join_threads)
    _call_printing_errors(end_run)
    sys.exit(code)


def _call_printing_errors(call: Callable[[], None]) -> None:
    """Calls `call`; prints its exception, as the interpreter does at its exit.

    The exception does not change the exit code.
    """
    try:
        call()
    except BaseException:  # noqa: BLE001
        sys.excepthook(*sys.exc_info())


def _join_threads() -> None:
    """Waits for the program's threads, as the interpreter's exit does.

    While the program's threads run, they may still open a session, and procsv needs timer threads
    to handle a notice or a stop.  Python 3.12 and newer start no thread once the exit has begun.  So
    this function waits before the exit begins.
    """
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        # A thread may need this module later, but Python refuses to import it for the first time once the wait begins.
        import concurrent.futures.thread  # noqa: F401
    threading._shutdown()  # type: ignore[attr-defined]  # the exit calls it again, without effect


def _end_run(runtime: Runtime, signals: ProgramSignals) -> None:
    if not runtime.is_connected:
        return  # only the trainer itself has a run to end, not a child that the program forked
    _leave_run(runtime)
    signals.ignore_notices()
    failpoint("trainer.atexit")  # after a kill here, all is saved, but the exit is still by a signal


def _leave_run(runtime: Runtime) -> None:
    runtime.finish_session()
    # If the program has not ended its session, the release below does not close the heartbeat.  So write the step here.
    runtime.heartbeat.write_step(runtime.heartbeat.step)
    runtime.release_run()


def _make_runtime(start: Start, signals: ProgramSignals, gate: Callable[[Runtime], None] | None = None) -> Runtime:
    runtime = Runtime(
        start.paths,
        (WATCHDOG, *SERVICES),  # on a member's machine these are proxies
        start,
        gate=gate,
        handled_signals=signals.handled,
        leave_to_program=partial(_leave_to_program, signals),
    )
    set_current(runtime)
    return runtime


def _join_run(runtime: Runtime, signals: ProgramSignals, start: Start) -> None:
    """Connects to the run as the trainer.

    From here on the process notices a stop, even while the main thread is in a C call.
    """
    runtime.become_trainer(start)
    runtime.acquire_run()
    link = runtime.connection.link
    link.on(Inject, lambda body: runtime.injected.inject(body, runtime.clock.monotonic()))
    rotation = LogRotation(start.paths.log(start.task, start.incarnation), start.settings.log_limit)
    link.on_tick += [runtime.injected.end_expired, rotation.rotate_if_due]
    if start.lifeline_fd >= 0:
        os.set_inheritable(start.lifeline_fd, False)
        link.watch_fd(start.lifeline_fd, lambda: _on_lifeline(runtime, link, start.lifeline_fd))
    _listen_for_signals(runtime, start, signals)
    if start.settings.consistent_snapshots and start.task.role not in STEPLESS:
        _join_step_gate(runtime, start)
    runtime.stops.add_listener(lambda _: _force_later(runtime, start))
    watch_caches(runtime)
    runtime.connection.start_link()


def _join_step_gate(runtime: Runtime, start: Start) -> None:
    """Joins the step gate, with which the chief holds the workers between two steps.

    This comes before the program starts, so that the gate covers every step.
    """
    if not start.is_spread:
        others = [task for task in start.settings.tasks if task.role not in STEPLESS and task != start.task]
        runtime.join_step_gate(StepGate(start.paths, start.task, others, runtime.clock))
    elif start.is_chief:
        say("--consistent-snapshots cannot pause other machines: snapshots may mix steps")


def _on_lifeline(runtime: Runtime, link: Link, fd: int) -> None:
    if os.read(fd, 1) == b"":
        link.unwatch(fd)
        say("the watchdog is gone; saving, then ending")
        runtime.stops.request_stop("preempt")


def _listen_for_signals(runtime: Runtime, start: Start, signals: ProgramSignals) -> None:
    """Turns each notice into a stop request on the link's thread, whatever the main thread does.

    A scheduler may signal all processes of a run at once.  The watchdog then stops the tasks in the
    right order by messages, so a task acts on its signal only if no message follows within
    `alone_s`.  The chief waits longer, to give the workers a head start.  A task that the chief
    needs for its last save, such as a parameter server, ignores the signal.
    """
    trains_beside = [task for task in start.settings.tasks if task.role not in STEPLESS and task != start.task]
    alone_s = SIGNAL_ALONE_S + (HEAD_START_S if start.is_chief and trains_beside else 0.0)

    def read_signals() -> None:
        for number in signals.take_notices():
            _call_later(alone_s, noticed, signal.Signals(number).name)

    def noticed(name: str) -> None:
        if runtime.stops.is_asked:
            return
        if needed := _why_needed(runtime, start):
            say(f"{name} ignored: this task is {needed}, and runs until its watchdog ends it")
        else:
            runtime.connection.note_entry(PreemptNotice(grace=start.settings.grace_s, source=f"{name} to the trainer"))
            runtime.stops.ask_program("preempt", start.settings.grace_s * TRAINER_SHARE)

    runtime.connection.link.watch_fd(signals.fd, read_signals)


def _why_needed(runtime: Runtime, start: Start) -> str:
    """Why the chief needs this task for its last save: what the task is; "" if it does not."""
    serves = runtime.heartbeat.phase is Phase.SERVE  # a worker may be a server, too, for a ParameterServerStrategy
    if start.task.role == PS or (serves and not start.is_chief):
        return "a server"
    word, has_servers = start.settings.restart, any(task.role == PS for task in start.settings.tasks)
    in_step = word == "gang" or (word == "auto" and runtime.trains_in_step and not has_servers)
    is_follower = in_step and not start.is_chief and start.task.role not in STEPLESS
    return "a task that trains in step with its chief" if is_follower else ""


def _leave_to_program(signals: ProgramSignals, runtime: Runtime, reason: Reason, grace_s: float) -> bool:
    """Lets a program that handles SIGTERM end by itself.

    Returns False if it does not handle SIGTERM, or cannot run its handler now.  Otherwise procsv
    captures the program's state at the end of this step.  After OWN_SHARE of the grace period it
    asks the program to stop at the next step boundary, like any other program.  After FORCED_SHARE
    it ends the process.
    """
    is_waiting = runtime.heartbeat.phase in (Phase.CONNECT, Phase.SERVE)  # in C code, where its handler cannot run
    if not signals.handles_stop or is_waiting:
        return False
    runtime.capture_state(reason)
    _call_later(grace_s * OWN_SHARE, runtime.stops.request_stop, reason)
    _call_later(grace_s * FORCED_SHARE, _end_by_force, runtime)
    return True


def _force_later(runtime: Runtime, start: Start) -> None:
    """Ends a program that does not end within the grace period; its newest snapshot survives."""
    after_s = start.settings.grace_s * TRAINER_SHARE * FORCED_SHARE

    def force_a_wait() -> None:
        if runtime.heartbeat.has_ended:
            _leave_threads(runtime)
        if runtime.heartbeat.phase is Phase.CONNECT:  # it waits for a server or the chief, and has nothing to save
            say("the program is still waiting for its session: ending it")
            os._exit(exit_codes.RESUMABLE)

    _call_later(min(CONNECT_S_MAX, after_s), force_a_wait)
    _call_later(after_s, _end_by_force, runtime)


def _end_by_force(runtime: Runtime) -> None:
    if runtime.heartbeat.has_ended:
        _leave_threads(runtime)
    grace = show_duration(runtime.connection.start.settings.grace_s)
    say(f"the program has not stopped in time; ending it before the grace period of {grace} is over")
    # With `is_left_to_end_run`, the run was to end when the program had handled SIGTERM. Exit code 75 would then wrongly
    # claim that the program has saved.
    os._exit(exit_codes.GAVE_UP if runtime.stops.is_left_to_end_run else exit_codes.RESUMABLE)


def _leave_threads(runtime: Runtime) -> NoReturn:
    """Ends a process whose program has ended, but whose threads have not.

    The exit code is the program's.  This thread does the interpreter's exit work, because the main
    thread waits for the other threads.  A kill in here does not change the exit code, which is
    already in the heartbeat.
    """
    main = threading.main_thread()
    names = [one.name for one in threading.enumerate() if one is not main and not one.daemon]
    what = f"its thread {names[0]} still runs" if names else "its process still runs"
    what = f"its threads {', '.join(names)} still run" if len(names) > 1 else what
    say(f"the program has ended, but {what}: ending the process, exit code {runtime.heartbeat.returned}")
    if names:  # otherwise the main thread has already reached the exit functions
        _leave_run(runtime)
        atexit._run_exitfuncs()
        flush_output()
    os._exit(runtime.heartbeat.returned)


def _call_later(seconds: float, call: Callable[..., None], *args: Any) -> None:
    timer = threading.Timer(seconds, call, args)
    timer.name, timer.daemon = "procsv-timer", True
    timer.start()


def _run_target(runtime: Runtime, start: Start) -> int:
    """Runs the program; returns its exit code."""
    if start.settings.drop_in:
        install()
    reads_input = watch_input()
    watch_exec()
    allow_own_group()
    # At its exit the interpreter collects garbage once more. With TensorFlow's objects that takes a second, during
    # which a failed trainer cannot be restarted. So they are frozen here; a standby freezes them for its forks. The
    # drawback: a cycle of objects that the program made before this import is never finalized.
    call_after_import("tensorflow", gc.freeze)
    with runtime.stops.interrupting(_interrupt_program):
        watch_servers(runtime)
        watch_collectives(runtime)
        watch_deletions(runtime)
        guard_other_trainings(runtime)
        return _run_program(runtime, start, reads_input)


def _run_program(runtime: Runtime, start: Start, reads_input: Callable[[], bool]) -> int:
    try:
        failpoint("trainer.import")
        run_program(find_target(start.target, Path.cwd()), list(start.program_args))
    except SystemExit as leaving:
        if may_be_within_a_step(leaving):
            runtime.record_failure(leaving)
        if not isinstance(leaving.code, int | None):
            print(leaving.code, file=sys.stderr)
        if exit_code_of(leaving) and reads_input():
            say(READS_INPUT)
        return exit_code_of(leaving)
    except UserError as error:
        _leave_last_words(runtime, error, None)
        say(str(error))
        return exit_codes.MISCONFIGURED
    except KeyboardInterrupt as error:
        # Report a Ctrl-C of the user, but not the one that `_interrupt_program` sends to stop the program's imports.
        if runtime.stops.reason is None or runtime.heartbeat.phase is not Phase.IMPORT:
            _report_exception(runtime, error)
        return exit_code_of(error)
    except BaseException as error:  # noqa: BLE001  the program's error: printed, recorded, and in the exit code
        if runtime.stops.is_asked and not runtime.stops.is_left_to_end_run and is_of_stop(error):
            say(f"the stop interrupted the step in progress ({type(error).__name__})")
            return exit_codes.RESUMABLE
        if reads_input():
            error.add_note(f"procsv: {READS_INPUT}")
        _report_exception(runtime, error)
        return exit_code_of(error)
    return 0


def _interrupt_program() -> None:
    """Interrupts the program like Ctrl-C, even in a system call, so that its cleanup still runs."""
    main = threading.main_thread().ident
    assert main is not None, "the main thread runs"
    signal.pthread_kill(main, signal.SIGINT)


def _report_exception(runtime: Runtime, error: BaseException) -> None:
    runtime.record_failure(error)
    own = _of_the_program(error.__traceback__)
    _leave_last_words(runtime, error, own)
    sys.excepthook(type(error), error.with_traceback(own), own)


def _of_the_program(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without procsv's, runpy's and the import system's frames at its start."""
    skipped = {__file__, sys.modules[run_program.__module__].__file__}
    while trace is not None and trace.tb_next is not None:
        name = trace.tb_frame.f_code.co_filename
        if name not in skipped and "importlib" not in name:
            break
        trace = trace.tb_next
    return trace


def _leave_last_words(runtime: Runtime, error: BaseException, trace: TracebackType | None) -> None:
    if runtime.is_connected:  # the errors of a standby, or of a child that the program forked, only go to the log
        write_last_words(runtime.connection.start, error, trace, runtime.heartbeat.step)


# -- malloc ----------------------------------------------------------------------------------------
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of mallopt(3)
MMAP_BYTES = 32 * 2**20  # blocks of up to this size come from the heap; glibc's largest value
TRIM_BYTES = 2**30  # malloc keeps up to this much free memory at the heap's end; if there is more, it returns all
PROCESSORS_PER_ARENA = 8


def arenas_max() -> int:
    """The number of arenas that all threads share."""
    return max(1, len(os.sched_getaffinity(0)) // PROCESSORS_PER_ARENA)


def keep_memory(environment: Mapping[str, str]) -> bool:
    """Tells glibc's malloc to keep the memory of one training step for the next one.

    Returns False, and changes nothing, if the user has configured malloc or uses another allocator.

    A step's tensors are blocks of megabytes.  By default malloc returns each freed block to the
    system, and the next step gets it back page by page, which on a CPU can take a fifth of its
    time.  Threads also have arenas of their own, which consist of heaps of 64 MB, and malloc returns
    an empty heap to the system whatever the thresholds say.  TensorFlow's threads then get tens of
    megabytes back in each step.  So all threads share a few arenas.  With a single arena, the
    threads of a large machine would wait for each other.
    """
    is_told = any(name.startswith("MALLOC_") for name in environment) or "glibc.malloc" in environment.get(
        "GLIBC_TUNABLES", ""
    )
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if is_told or "malloc" in environment.get("LD_PRELOAD", "") or mallopt is None:
        return False
    wanted = ((M_MMAP_THRESHOLD, MMAP_BYTES), (M_TRIM_THRESHOLD, TRIM_BYTES), (M_ARENA_MAX, arenas_max()))
    return all(mallopt(parameter, value) for parameter, value in wanted)
