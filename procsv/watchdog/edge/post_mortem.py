"""What a dead process has left to be read: last words, stacks, the newest snapshot, the end of a log.

Used by event_loop.py.  Whatever is not there, or is cut short, is nothing.  `clear` removes what has been read.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from procsv.base.outcome import NO_STEP
from procsv.base.run.log_tail import last_lines
from procsv.ipc.shm.slot_file import scan_slots
from procsv.watchdog.core.events import Ended
from procsv.watchdog.core.restart_policy import LastWords

if TYPE_CHECKING:
    from pathlib import Path

    from procsv.base.outcome import Exit
    from procsv.base.run.paths import RunPaths
    from procsv.ipc.shm.heartbeat import Heartbeat

STACKS_BYTES_MAX = 2**20  # of what faulthandler has written; hundreds of threads fit in
LOG_BYTES_MAX = 2**16  # from the end of a service's log, in which its stacks are looked for
SERVICE_LINES_SHOWN = 10  # of a service's log, when it has died for good


def last_words(paths: RunPaths, incarnation: int) -> LastWords | None:
    """What its excepthook wrote of the exception that ended it."""
    try:
        return msgspec.json.decode(paths.last_words(incarnation).read_bytes(), type=LastWords)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def stacks(paths: RunPaths, incarnation: int) -> str:
    """What faulthandler wrote of its threads."""
    try:
        with paths.stacks(incarnation).open("rb") as file:
            return file.read(STACKS_BYTES_MAX).decode(errors="replace")
    except OSError:
        return ""


def clear(paths: RunPaths, incarnation: int) -> None:
    """Removes words and stacks, once the report of the crash is written: one of each a crash would pile up for months."""
    paths.last_words(incarnation).unlink(missing_ok=True)
    paths.stacks(incarnation).unlink(missing_ok=True)


def service_ended(role: str, incarnation: int, exit: Exit, beat: Heartbeat | None, oom: str, log: Path) -> Ended:
    """The end of a service, with what its log says of it."""
    said = tuple(last_lines(log, SERVICE_LINES_SHOWN))
    return Ended(role, incarnation, exit, beat, stacks=_end_of(log), oom=oom, log=str(log), last_lines=said)


def _end_of(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES_MAX))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def memory_step(paths: RunPaths) -> int:
    """The step of the newest whole snapshot in shared memory; NO_STEP if there is none."""
    try:
        return max((info.step for info in scan_slots(paths.shm_dir)), default=NO_STEP)
    except OSError:
        return NO_STEP
