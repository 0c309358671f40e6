"""Last words of a trainer: the exception that ends it, saved for the crash report.

The bootstrap writes them.  Without `procsv launch`, the Runtime writes them after a session that
an exception has ended.  The watchdog reads them.  If the exception names another task that is gone,
the last words name that task, too.
"""

from __future__ import annotations

import contextlib
import os
import re
import traceback
from pathlib import Path
from types import FrameType, TracebackType

from procsv.base import exit_codes
from procsv.base.encoding import encode_json
from procsv.base.errors import UserError
from procsv.base.outcome import LastWords
from procsv.base.system.atomic_file import replace_file
from procsv.base.system.disk import NO_ROOM
from procsv.ipc.messaging.start import Start

OUR_FILES = f"{Path(__file__).parents[2]}/"
HAS_VARARGS = 4  # in the flags of code
# An error of these kinds means a lost peer if it names a task.
KINDS = frozenset({"UnavailableError", "AbortedError", "DeadlineExceededError"})
# In the error after a server has been replaced by another one.
RESTARTED = re.compile(r"[Ii]ncarnation|[Ss]ession handle is not found|No worker known as")
# In the error of a collective's members after one of them is lost, by its connection or TensorFlow's heartbeats.
COLLECTIVE = "Collective ops is aborted by"
_REMOTE = re.compile(r"remote target /job:(?!localhost/)(\w+)/replica:\d+/task:(\d+)")
_REPORTED = re.compile(r"Error reported from /job:(\w+)(?:/replica:\d+)?/task:(\d+)")  # by TensorFlow's heartbeats
_TASK = re.compile(r"/job:(?!localhost/)(\w+)/replica:\d+/task:(\d+)")


def write_last_words(start: Start, error: BaseException | None, trace: TracebackType | None, step: int) -> None:
    """Saves `error` for the crash report, unless it is a normal exit.

    `trace` is its traceback; None means the error's own.
    """
    if error is None or isinstance(error, SystemExit):
        return
    permanent = isinstance(error, (ImportError, SyntaxError, UserError)) and step < 0
    is_message = isinstance(error, UserError)
    lines = _trace_to_user(error) if is_message else _trace(error, trace)
    peer = find_lost_peer(error)
    words = LastWords(
        type=type(error).__qualname__,
        message=str(error),
        traceback="".join(lines),
        step=step,
        permanent=permanent,
        is_shown=is_message,
        no_room=tells_of_no_room(error),
        lost_peer=peer,
    )
    with contextlib.suppress(OSError):  # no room or no directory: the log has them, too
        replace_file(start.paths.last_words(start.task, start.incarnation), encode_json(words), durable=False)


def _trace_to_user(error: BaseException) -> list[str]:
    """The trace of a user's mistake in the program, without procsv's frames."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(OUR_FILES)]
    return [*traceback.format_list(frames), *traceback.format_exception_only(error)]


def _trace(error: BaseException, trace: TracebackType | None) -> list[str]:
    return traceback.format_exception(type(error), error, trace or error.__traceback__)


def tells_of_no_room(error: BaseException | None) -> bool:
    """Whether a full disk or quota caused `error`; TensorFlow says so in the message only."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if getattr(error, "errno", None) in NO_ROOM:
            return True
        if "ResourceExhausted" in type(error).__name__ and any(os.strerror(number) in str(error) for number in NO_ROOM):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def exit_code_of(error: BaseException | None) -> int:
    """The exit code of a program that `error` ends."""
    if isinstance(error, SystemExit):
        if isinstance(error.code, int):
            return error.code & 0xFF
        return 0 if error.code is None else 1
    if isinstance(error, KeyboardInterrupt):
        return exit_codes.INTERRUPTED
    return 0 if error is None else 1


def is_of_stop(error: BaseException) -> bool:
    """Whether a stop raises `error` in a step under way.

    The chief closes the queue at which steps wait, for example with SyncReplicasOptimizer.
    """
    kind = type(error)
    is_closed = kind.__name__ == "OutOfRangeError" and "is closed" in str(error)
    return kind.__module__.startswith("tensorflow.") and (is_closed or kind.__name__ == "CancelledError")


def may_be_within_a_step(error: BaseException) -> bool:
    """Whether `error` may have ended the program in the middle of a step.

    An exit with code 0 or 75 cannot have done so, except if a signal handler raised it.
    """
    is_in_order = isinstance(error, SystemExit) and exit_code_of(error) in (0, exit_codes.RESUMABLE)
    return not is_in_order or _is_of_handler(error)


def _is_of_handler(error: BaseException) -> bool:
    """Whether a signal handler raised `error`, possibly in the middle of a step.

    Python gives a handler the frame that the signal interrupted.
    """
    trace = error.__traceback__
    while trace is not None:
        code, found = trace.tb_frame.f_code, trace.tb_frame.f_locals
        names = code.co_varnames[: code.co_argcount + bool(code.co_flags & HAS_VARARGS)]
        given = [found.get(name) for name in names]
        if any(isinstance(one, FrameType) for arg in given for one in (arg if isinstance(arg, tuple) else (arg,))):
            return True
        trace = trace.tb_next
    return False


def find_lost_peer(error: BaseException) -> str:
    """Returns the task that is gone according to `error`, such as `ps.0`; "" if there is none.

    If the error does not name the task, it returns "a server" or "another member".  TensorFlow
    raises such errors in every task that used the dead one: this task is not at fault, and the
    error repeats until the other task is back.
    """
    kind, message = type(error), str(error)
    if not kind.__module__.startswith("tensorflow."):
        return ""
    is_collective = COLLECTIVE in message  # then any other named task is the one that reports
    named = _REMOTE.search(message) or (_REPORTED if is_collective else _TASK).search(message)
    if RESTARTED.search(message) or (kind.__name__ in KINDS and (named or is_collective)):
        unnamed = "another member" if is_collective else "a server"
        return f"{named[1]}.{named[2]}" if named else unnamed
    return ""
