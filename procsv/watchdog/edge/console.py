"""Print the watchdog's lines and the trainer's output on the terminal.

Used by event_loop.py. The trainer writes its output to its log file, never to us. The console reads
that file and echoes it, without TensorFlow's start-up noise. On a terminal, the console also shows
a status line below the output (screen.py), and turns off the echo of typed keys. One daemon thread
does all the writing: a terminal that accepts no output (Ctrl-S, a full pipe) stops only that
thread.
"""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import termios
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from procsv.base.run.logs import LogFollower
from procsv.base.run.run_file import RunFile
from procsv.base.system import stale
from procsv.base.system.disk import NO_ROOM
from procsv.base.system.system_clock import SystemClock
from procsv.base.terminal import NoiseFilter, OutputFilter, printable
from procsv.watchdog.core.reporting.status_line import LineFacts, StatusLine, render
from procsv.watchdog.edge.screen import Screen

if TYPE_CHECKING:
    from procsv.report.losses import LossNow

POLL_S = 0.1  # between two readings of the log: the trainer's output appears at most this late
QUIET_POLL_S = 0.5  # instead of POLL_S, without a status line, after QUIET_ROUNDS rounds without output
QUIET_ROUNDS = 20
CHUNK_BYTES = 2**16
ROUND_BYTES_MAX = 2**20  # how much of the log is echoed before our own lines are printed
LINES_WAITING_MAX = 1000  # how many of our lines wait for a stopped terminal; the oldest are dropped
COLUMNS_MIN = 20  # a narrower terminal has no status line
COLUMNS_UNKNOWN = 80
FILES_S = 2.0  # between two readings of the event files
START_BYTES = 2**14  # how much of an event file's end is read at first; values older than the attempt are ignored
DRAIN_S_MAX = 5.0  # how long the end waits for a terminal that accepts no output

_RED, _DIM, _PLAIN = "\x1b[31m", "\x1b[2m", "\x1b[0m"
_LOCAL_FLAGS = 3  # their index in tcgetattr's result


class Console:
    """Prints `procsv: ` lines on stderr, and the trainer's output on stdout."""

    def __init__(self, echo: bool = True, out_fd: int = 1, err_fd: int = 2, has_status: bool = False) -> None:
        """`has_status`: show a status line below the output, if both streams are one terminal."""
        self._out_fd, self._err_fd, self._echo = out_fd, err_fd, echo
        self.is_live = has_status and echo and _is_one_screen(out_fd, err_fd)
        self._screen, self._line, self._keys = Screen(), StatusLine(), KeyEcho(out_fd)
        self._look: tuple[LineFacts, RunFile, float] | None = None  # the newest facts, their source and monotonic time
        self._seen: tuple[LineFacts, RunFile, float] | None = None  # the `_look` from which `_facts` were made
        self._facts: LineFacts | None = None  # the facts to draw, with the loss and the total that the program reports
        self._loss: LossNow | None = None  # the attempt's loss, on a live screen
        self._files_s = 0.0  # when to read event files next
        self._quiet_rounds = 0  # since the trainer last printed something
        self._colour = os.isatty(err_fd) and "NO_COLOR" not in os.environ
        # Our lines to print (bytes) and the logs to echo next (Path), in order. None: the end, so stop.
        self._queue: collections.deque[bytes | Path | None] = collections.deque()
        self._news = threading.Condition()
        self._log: LogFollower | None = None
        self._noise = NoiseFilter()
        self._filter = OutputFilter() if os.isatty(out_fd) else None
        self._broken: set[int] = set()  # the descriptors that accept no more output
        self._shares_lines = _is_one_file(out_fd, err_fd)
        self._is_line_open = False  # the program's last output did not end its line
        self._thread = threading.Thread(target=self._run, name="procsv-console", daemon=True)
        self._thread.start()

    def say(self, text: str, is_bad: bool = False, traceback: str = "") -> None:
        """Print one line of ours, followed by `traceback`.

        Control characters in either are made visible, so that they do not control the terminal.
        """
        line = f"procsv: {printable(text)}"
        if self._colour:
            line = f"{_RED if is_bad else _DIM}{line}{_PLAIN}"
        self._put((line + "\n" + (printable(traceback.rstrip()) + "\n" if traceback else "")).encode(errors="replace"))

    def show(self, run: RunFile, now_s: float) -> None:
        """Set the current state of the run, for the status line."""
        if self.is_live:
            self._look = self._line.read_facts(run, now_s), run, now_s

    def follow(self, log: Path) -> None:
        """Echo `log` from its current end, after the rest of the previous log."""
        if self._echo:
            self._put(log)

    def finish(self) -> bool:
        """Echo the rest of the output, and stop.

        Return False if the terminal has not accepted all of it within DRAIN_S_MAX.
        """
        self._put(None)
        self._thread.join(DRAIN_S_MAX)
        if _is_foreground(self._out_fd):
            self._keys.restore_echo()
        return not self._thread.is_alive()

    def _put(self, item: bytes | Path | None) -> None:
        with self._news:
            self._queue.append(item)
            if len(self._queue) > LINES_WAITING_MAX:
                self._drop_oldest_line()
            self._news.notify()

    def _drop_oldest_line(self) -> None:
        """Drop our oldest line from the queue.

        The logs to follow stay in the queue; otherwise a trainer's output would never be shown.
        """
        for at, item in enumerate(self._queue):
            if isinstance(item, bytes):
                del self._queue[at]
                return

    # -- on the thread -------------------------------------------------------------------------------------
    def _run(self) -> None:
        while True:
            with self._news:
                if not self._queue:
                    self._news.wait(self._pause_s())
                items = list(self._queue)
                self._queue.clear()
            self._pump(ROUND_BYTES_MAX)
            for item in items:
                if isinstance(item, bytes):
                    self._print_line(item)
                    continue
                self._pump(None)
                self._echo_output(self._noise.release())
                self._print_output(self._filter.finish_output() if self._filter is not None else b"")
                self._screen.end_line()
                if item is None:
                    self._write(self._out_fd, self._screen.finish())
                    return
                self._open(item)
            self._draw()

    def _pause_s(self) -> float | None:
        """Return how long to wait for the next round; None: until something is in the queue."""
        if self._log is None:
            return None
        return QUIET_POLL_S if self._quiet_rounds >= QUIET_ROUNDS and not self.is_live else POLL_S

    def _open(self, log: Path) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None
        with contextlib.suppress(OSError):
            self._log = LogFollower(log)
        if self.is_live:
            from procsv.report.losses import Losses, LossNow

            self._loss, self._files_s = LossNow(Losses(since_s=SystemClock().wall(), start=START_BYTES)), 0.0

    def _pump(self, bytes_max: int | None) -> None:
        """Echo new output from the log.

        `bytes_max`: stop after about this much. None: the log's writer is dead, so echo the rest.
        """
        done = 0
        while self._log is not None and (bytes_max is None or done < bytes_max):
            try:
                data = self._log.read_log(CHUNK_BYTES, is_last=bytes_max is None)
            except OSError:
                return
            if not data:
                if not done:  # nothing came for a whole round, so show what the filter has held back
                    self._echo_output(self._noise.release())
                    self._quiet_rounds += 1
                return
            done += len(data)
            self._quiet_rounds = 0
            if self._loss is not None and self._look is not None:
                self._loss.losses.read_output(data, self._look[2])
            self._echo_output(self._noise.pass_on(data))

    def _echo_output(self, data: bytes) -> None:
        self._print_output(self._filter.pass_on(data) if self._filter is not None else data)

    def _print_output(self, data: bytes) -> None:
        """Print the program's output. On a live screen, `_draw` prints it, after this round."""
        if self.is_live:
            self._screen.print_output(data)
        elif data:
            self._is_line_open = self._shares_lines and not data.endswith(b"\n")
            self._write(self._out_fd, data)

    def _print_line(self, line: bytes) -> None:
        """Print our line on a line of its own, even if the program has not ended its last line."""
        if self.is_live:
            self._screen.print_line(line)
        else:
            self._write(self._err_fd, b"\n" + line if self._is_line_open else line)
            self._is_line_open = False

    def _see(self) -> LineFacts | None:
        """Return the newest facts, with the loss and the number of steps that the program reports.

        A fit reports its loss in its heartbeat. For other programs, both are read from the output
        and the event files.
        """
        if self._look is None or self._look is self._seen:
            return self._facts
        self._seen = (facts, run, now_s) = self._look
        if facts.fit is not None:
            return msgspec.structs.replace(facts, loss=run.loss)
        if self._loss is None or facts.state != "running":
            return facts
        if now_s >= self._files_s:
            self._files_s = now_s + FILES_S
            with contextlib.suppress(OSError):
                self._loss.losses.read_files(run.checkpoint_dir)
        told = self._loss.look(facts.step, now_s)
        total = facts.steps_total if facts.steps_total > 0 else told.last_step
        return msgspec.structs.replace(facts, loss=told.loss, steps_total=total)

    def _draw(self) -> None:
        if not self.is_live:
            return
        self._facts = facts = self._see()
        width, is_ours = _columns(self._out_fd), _is_foreground(self._out_fd)
        is_shown = facts is not None and width >= COLUMNS_MIN and is_ours
        if not is_ours:
            self._keys.forget_terminal()
        elif is_shown:
            self._keys.turn_off()
        self._screen.show_status(render(facts, width - 1) if is_shown and facts is not None else "")
        self._write(self._out_fd, self._screen.render_rows(width))

    def _write(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        while view and fd not in self._broken:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:  # another process has made the terminal non-blocking
                threading.Event().wait(0.02)
            except OSError as error:
                if error.errno in NO_ROOM:  # our output goes to a file, and there may be room for the next line
                    return
                if not stale.reopen(fd):  # it is closed, so write no more to it; the log file has everything
                    self._broken.add(fd)


def _is_one_screen(out_fd: int, err_fd: int) -> bool:
    """Whether both are the same terminal, and this terminal can erase lines."""
    if not (os.isatty(out_fd) and os.isatty(err_fd)) or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return os.fstat(out_fd).st_rdev == os.fstat(err_fd).st_rdev


def _is_one_file(out_fd: int, err_fd: int) -> bool:
    """Whether both are the same file, so that output to both is mixed."""
    try:
        return os.path.samestat(os.fstat(out_fd), os.fstat(err_fd))
    except OSError:  # one is closed
        return False


def _is_foreground(fd: int) -> bool:
    """Whether we are in the foreground of the terminal.

    If a shell is in the foreground (`procsv launch … &`), we would draw over its prompt.
    """
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return True  # this is not our controlling terminal, so no shell waits on it


def _columns(fd: int) -> int:
    try:
        return os.get_terminal_size(fd).columns or COLUMNS_UNKNOWN
    except OSError:
        return COLUMNS_UNKNOWN


class KeyEcho:
    """Turns off the echo of typed keys on a terminal while live rows are drawn on it.

    An echoed Enter would move the cursor away from the rows, and the old rows would stay on the
    screen. The shell still receives the keys afterwards, and Ctrl-C works. If we are killed, the
    shell restores its terminal, as it does after any program that was killed or stopped.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._before: list[Any] | None = None

    def turn_off(self) -> None:
        """Turn off the echo until `restore_echo`. Call this only while we are in the foreground."""
        if self._before is not None:
            return
        with contextlib.suppress(termios.error):
            before = termios.tcgetattr(self._fd)
            self._before = before
            self._apply([*before[:_LOCAL_FLAGS], before[_LOCAL_FLAGS] & ~termios.ECHO, *before[_LOCAL_FLAGS + 1 :]])

    def restore_echo(self) -> None:
        """Restore the setting that `turn_off` has replaced."""
        before, self._before = self._before, None
        if before is not None:
            with contextlib.suppress(termios.error):  # the terminal is gone
                self._apply(before)

    def forget_terminal(self) -> None:
        """Forget the previous setting: a shell has the terminal back, and has set it up."""
        self._before = None

    def _apply(self, attributes: list[Any]) -> None:
        # If the shell takes the terminal back at this moment, SIGTTOU would stop us.
        was = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            termios.tcsetattr(self._fd, termios.TCSANOW, attributes)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, was)
