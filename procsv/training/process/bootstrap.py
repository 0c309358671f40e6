"""The trainer's first and last lines: joins the run, then runs TARGET as `python TARGET ARGS…` would.

Started by the watchdog, as a trainer or as a standby that becomes one (standby.py).  The program sees its own `__main__`,
`sys.argv`, `sys.path[0]`, working directory and multiprocessing spawn.  Imports no TensorFlow: that is the program's to
do.  An exception of the program's is left as last words for the crash report, and printed with the program's own traceback.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import TracebackType

from procsv.base import exit_codes
from procsv.base.errors import UserError
from procsv.base.failpoints import declare, failpoint
from procsv.base.grace import FORCED_SHARE, TRAINER_SHARE
from procsv.base.identity import STANDBY, TRAINER, WATCHDOG
from procsv.base.output import keep_output_going
from procsv.base.service_table import SERVICES
from procsv.base.stack_dump import arm
from procsv.base.target import find_target, parse_target
from procsv.ipc.messaging.messages import Inject, Loaded, Note
from procsv.ipc.messaging.start import Start, take_start
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.process.drop_in import install_later
from procsv.training.process.import_record import Observer, write_loaded
from procsv.training.process.log_rotation import LogRotation
from procsv.training.process.program import run_program
from procsv.training.process.standby import Standby
from procsv.training.runtime.context import Runtime, set_current
from procsv.training.runtime.last_words import exit_code_of, write_last_words

SIGNAL_ALONE_S = 0.1  # a SIGTERM that nothing follows for so long comes from somebody else: the machine goes away

declare("trainer.import", "trainer.atexit")


def main() -> None:
    """Runs the target; ends the process with its exit code."""
    keep_output_going()
    start = take_start(TRAINER)
    observer = Observer()
    standby = Standby(start) if start.task == STANDBY else None
    if standby is not None:
        observer.changes = standby.prepare()
    observer.begin()
    if standby is not None and start.settings.standby == "hot":
        runtime, signals = _make(standby.run_ahead()), _catch_signals(start)
        runtime.gate = lambda: _join(runtime, signals, standby.become())
    else:
        start = start if standby is None else standby.become()
        runtime = _make(start)
        _join(runtime, _catch_signals(start), start)
    if start.settings.standby != "off":
        program = parse_target(start.target, Path.cwd()).module.partition(".")[0]
        runtime.on_ready = lambda: _tell_loaded(runtime, observer, program)
    code = _run(runtime, start)
    if runtime.gate is not None:
        sys.exit(code)  # a hot standby whose program has ended without a session: it was no trainer
    if code == 0 and runtime.stop_reason is not None:
        code = exit_codes.RESUMABLE  # it ended because it was asked to: there may be more to train
    runtime.phase = Phase.STOP
    runtime.end()
    for (
        notice
    ) in start.settings.notice_signals:  # it is over: one that comes while the interpreter ends must not say otherwise
        signal.signal(notice, signal.SIG_IGN)
    failpoint("trainer.atexit")  # killed here: all is said and saved; the exit is a signal's all the same
    sys.exit(code)


def _make(start: Start) -> Runtime:
    runtime = Runtime(start.paths, (WATCHDOG, *SERVICES), start)
    set_current(runtime)
    return runtime


def _join(runtime: Runtime, signals: int, start: Start) -> None:
    """Connects to the run as the trainer; from here on a stop is heard even while the main thread sits in a C call."""
    arm(start.paths.stacks(start.task, start.incarnation))
    runtime.become(start)
    runtime.begin()
    link = runtime.link
    link.on(Inject, lambda received: _have_fault(runtime, received.body))
    link.on_tick.append(lambda: runtime.injected.end_expired(runtime.clock.monotonic()))
    rotation = LogRotation(start.paths.log(start.task, start.incarnation), start.settings.log_limit)
    link.on_tick.append(lambda: rotation.tick(runtime.clock.monotonic()))
    if start.lifeline_fd >= 0:
        os.set_inheritable(start.lifeline_fd, False)
        link.watch(start.lifeline_fd, lambda: _on_lifeline(runtime, start.lifeline_fd))
    _listen_for_signals(runtime, start, signals)
    runtime.on_stop(lambda _: _force_later(runtime, start))
    runtime.talk()


def _tell_loaded(runtime: Runtime, observer: Observer, program: str) -> None:
    """On a thread of its own, beside the first steps: a standby can be made now."""

    def tell() -> None:
        write_loaded(runtime.paths.loaded, observer.changes, program)
        runtime.tell_watchdog(Loaded())

    threading.Thread(target=tell, name="procsv-loaded", daemon=True).start()


def _have_fault(runtime: Runtime, body: object) -> None:
    assert isinstance(body, Inject)
    runtime.injected.inject(body, runtime.clock.monotonic())


def _on_lifeline(runtime: Runtime, fd: int) -> None:
    if os.read(fd, 1) == b"":
        runtime.link.unwatch(fd)
        print("procsv: the watchdog is gone; saving, then ending", file=sys.stderr)
        runtime.request_stop("preempt")


def _catch_signals(start: Start) -> int:
    """From now on the signals that ask for an end end nothing by themselves; where they can be read.  On the main thread."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    for notice in start.settings.notice_signals:
        signal.signal(notice, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def _listen_for_signals(runtime: Runtime, start: Start, reader: int) -> None:
    """Each of them is a stop request.  The wake-up descriptor tells the link's thread, whatever the main thread does."""
    link, notices = (
        runtime.link,
        start.settings.notice_signals,
    )  # the process may be at its end already when the signal comes

    def hear() -> None:
        for number in notices.intersection(os.read(reader, 512)):
            # The watchdog's own message is on its way beside its signal, and knows why.
            timer = threading.Timer(SIGNAL_ALONE_S, noticed, (signal.Signals(number).name,))
            timer.daemon = True
            timer.start()

    def noticed(name: str) -> None:
        if runtime.stop_reason is None:
            link.send_reliable(
                WATCHDOG,
                Note("preempt_notice", {"grace": start.settings.grace_s, "source": f"{name} to the trainer"}),
            )
            runtime.request_stop("preempt")

    link.watch(reader, hear)


def _force_later(runtime: Runtime, start: Start) -> None:
    """A program that does not end by itself is ended within the grace: its newest snapshot outlives it."""
    after_s = start.settings.grace_s * TRAINER_SHARE * FORCED_SHARE

    def force() -> None:
        print(f"procsv: not ended {after_s:.0f} s after the stop was asked for: ended now", file=sys.stderr)
        sys.stderr.flush()
        os._exit(exit_codes.RESUMABLE)

    timer = threading.Timer(after_s, force)
    timer.daemon = True
    timer.start()


def _run(runtime: Runtime, start: Start) -> int:
    """Runs the program; the code to exit with."""
    if start.settings.drop_in:
        install_later()
    try:
        failpoint("trainer.import")
        run_program(find_target(start.target, Path.cwd()), list(start.args))
    except SystemExit as leaving:
        if not isinstance(leaving.code, int | None):
            print(leaving.code, file=sys.stderr)
        return exit_code_of(leaving)
    except UserError as error:
        _say_last_words(runtime, error, None)
        print(f"procsv: {error}", file=sys.stderr)
        return exit_codes.MISCONFIGURED
    except BaseException as error:  # noqa: BLE001  the program's: shown, kept, and told by the exit code
        own = _of_the_program(error.__traceback__)
        _say_last_words(runtime, error, own)
        sys.excepthook(type(error), error.with_traceback(own), own)
        return exit_code_of(error)
    return 0


def _of_the_program(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames that started the program (ours, runpy's and the import system's)."""
    skipped = {__file__, sys.modules[run_program.__module__].__file__}
    while trace is not None and trace.tb_next is not None:
        name = trace.tb_frame.f_code.co_filename
        if name not in skipped and "importlib" not in name:
            break
        trace = trace.tb_next
    return trace


def _say_last_words(runtime: Runtime, error: BaseException, trace: TracebackType | None) -> None:
    if runtime.gate is None:  # else a standby's, which is no trainer's; its log has it
        write_last_words(runtime.start, error, trace, runtime.step)
