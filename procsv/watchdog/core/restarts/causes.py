"""Find out why a process ended, for the journal and for people, and classify its exit.

Used by attempt_record.py, services.py and restart_policy.py, and by hosts. Pure: every fact is an
argument.
"""

from __future__ import annotations

import re
import signal
from enum import Enum, auto

import msgspec

from procsv.base import exit_codes
from procsv.base.outcome import NO_STEP, Exit, LastWords
from procsv.watchdog.core.events import Ended
from procsv.watchdog.core.hangs.stack_parser import where_it_crashed, where_it_was_raised

_IN_GRAPH = re.compile(r"^(.+)\n\s*\[\[\{\{node ", re.MULTILINE)
_COLLECTIVE = re.compile(r"^Collective ops is aborted by: .+$", re.MULTILINE)
CRASH_SIGNALS = frozenset(
    getattr(signal, name) for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSYS", "SIGTRAP")
)


class CauseKind(Enum):
    DONE = auto()  # exit 0
    CHECKPOINTED = auto()  # exit 75: the program has saved, and asks for a restart
    PERMANENT = auto()  # an exit code that marks an error which a restart cannot fix
    FAILURE = auto()  # anything else


class Cause(msgspec.Struct, frozen=True):
    """Why a process ended, for the journal and for people; "unknown" rather than a guess."""

    word: str  # completed, stopped, exception, exit-code, killed, oom, crashed, hang, lost-peer, unknown
    evidence: str


def classify(exit: Exit) -> CauseKind:
    if exit.code == exit_codes.DONE:
        return CauseKind.DONE
    if exit.code == exit_codes.RESUMABLE:
        return CauseKind.CHECKPOINTED
    return CauseKind.PERMANENT if exit.code in exit_codes.PERMANENT else CauseKind.FAILURE


def find_cause(
    exit: Exit,
    words: LastWords | None,
    stop_asked: bool,
    we_killed: str,
    hang: str = "",
    oom: str = "",
    where: str = "",
) -> Cause:
    """Return the cause of an exit.

    `words`: what the process wrote as it died. `stop_asked`: it was asked to end. `we_killed`: why
    the watchdog sent it SIGKILL. `hang`: the hang for which the watchdog ended it. `oom`: the
    kernel's evidence of an out-of-memory kill. `where`: the frame that a fatal signal hit. Each of
    these texts is "" if it does not apply.
    """
    if hang:
        return Cause("hang", hang)
    if exit.signal == signal.SIGKILL and we_killed:
        return Cause("stopped", f"SIGKILL, sent by procsv: {we_killed}")
    if exit.signal == signal.SIGKILL and oom:
        return Cause("oom", f"SIGKILL: {oom}")
    if exit.code not in (None, exit_codes.DONE, exit_codes.RESUMABLE) and words is not None and words.type:
        if words.lost_peer:
            return Cause("lost-peer", f"{words.lost_peer} is gone: {words.type}: {first_line(words.message)}")
        return Cause("exception", f"{words.type}: {first_line(words.message)}".rstrip(": "))
    if stop_asked and (exit.code in (exit_codes.DONE, exit_codes.RESUMABLE) or exit.signal == signal.SIGTERM):
        return Cause("stopped", f"{exit}, after it was asked to stop")
    if exit.code == exit_codes.DONE:
        return Cause("completed", "exit code 0")
    if exit.code == exit_codes.RESUMABLE:
        return Cause("exit-code", "exit code 75: the program saved its state and asks for a restart")
    if exit.code in exit_codes.PERMANENT:
        return Cause("exit-code", f"{exit}: {exit_codes.PERMANENT[exit.code]}, says the program")
    if exit.code is not None:
        return Cause("exit-code", str(exit))
    if exit.signal in CRASH_SIGNALS:
        return Cause("crashed", f"{exit} in {where}" if where else str(exit))
    if exit.signal is None and where:
        return Cause("crashed", f"a fatal signal in {where}")
    if exit.signal is not None:
        return Cause("killed", f"{exit}, sender unknown")
    return Cause("unknown", str(exit))


def blame_plan(cause: Cause, exit: Exit, fault: str) -> Cause:
    """Return `cause`; or, if a planned fault ended the process, a cause that names the fault."""
    if not fault or cause.word not in ("killed", "crashed", "exit-code"):
        return cause
    if cause.word == "killed":
        return Cause(cause.word, f"the fault plan ({fault}): {exit}")
    return Cause(cause.word, f"{cause.evidence}, by the fault plan ({fault})")


def blame_peer(cause: Cause, why: str) -> Cause:
    """Return the cause for a task that was ended because another member of its gang had ended.

    A task that had completed before that keeps its own cause.
    """
    if cause.word == "completed":
        return cause
    how = "SIGKILL, sent by procsv" if cause.word in ("killed", "stopped") else cause.evidence
    return Cause("lost-peer", f"{why}: {how}")


def name_failure(cause: Cause, exit: Exit, words: LastWords | None, hang: str) -> str:
    """Return what ended a trainer, and where. The same failure always gets the same words.

    Return "" if the trainer did not fail: procsv stopped it, another task was lost, or it was
    killed from outside, for example by a user or a chaos test. `hang`: the name of its hang; "" if
    it did not hang.
    """
    if cause.word in ("stopped", "killed", "lost-peer"):
        return ""
    if cause.word in ("hang", "oom"):
        return hang or "SIGKILL by the kernel, for lack of memory"
    if cause.word == "exception" and words is not None:
        where = where_it_was_raised(words.traceback)
        return f"{words.type} in {where}" if where else words.type
    return str(exit) if cause.word == "exit-code" else cause.evidence


def first_line(text: str) -> str:
    """Return the line of an error message that says what is wrong.

    This is not always the first line: some of TensorFlow's messages begin with the place of the
    error.
    """
    if aborted := _COLLECTIVE.search(text):
        return aborted[0][:300]
    in_graph = _IN_GRAPH.search(text) if text.startswith("Graph execution error:") else None
    return (in_graph[1] if in_graph else text).strip().partition("\n")[0][:300]


class Known(msgspec.Struct, frozen=True):
    """What was known about a task's attempt when the attempt ended."""

    step: int  # the last step read; NO_STEP if the attempt never reported a step
    is_stopping: bool = False  # the task was asked to end
    is_observed: bool = False  # procsv did not start it
    serves: bool = False  # the task serves variables to other tasks
    we_killed: str = ""  # why the watchdog killed it
    hang: str = ""  # the hang for which the watchdog ended it
    lost_peer: str = ""  # why the task was ended, if another member of its gang had ended
    handles_stop: bool = False  # the program has a SIGTERM handler of its own


def find_end(ended: Ended, known: Known) -> tuple[Cause, CauseKind]:
    """Return what ended a task's attempt, and what kind of end it was."""
    exit, where = ended.exit, where_it_crashed(ended.stacks)
    cause = find_cause(exit, ended.words, known.is_stopping, known.we_killed, known.hang, ended.oom, where)
    cause = blame_plan(cause, exit, ended.fault)
    if known.is_observed:
        if exit.code == 0 and not known.is_stopping:
            cause = Cause("completed", "its session has ended")
    elif known.is_stopping and exit.code == exit_codes.INTERRUPTED and known.step == NO_STEP:
        cause = Cause("stopped", f"{exit}: interrupted before its first session")
    elif known.is_stopping and known.handles_stop and cause.word == "exit-code":
        cause = Cause("stopped", f"{exit}, by its own handler of SIGTERM")
    if known.lost_peer:
        cause = blame_peer(cause, known.lost_peer)
    if ended.lost:
        cause = Cause("lost-peer", ended.lost)
    kind = classify(exit)
    if kind is CauseKind.DONE and known.serves and not known.is_stopping:
        return Cause("exit-code", str(exit)), CauseKind.FAILURE  # others need its variables
    return cause, kind
