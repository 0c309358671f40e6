"""What a dead trainer has left to be read: its last words, its stacks, its newest snapshot.

Used by reactor.py.  Whatever is not there, or is cut short, is nothing.  `clear` removes what has been read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from procsv.ipc.arena import scan
from procsv.ipc.runfile import NO_STEP
from procsv.watchdog.restart import LastWords

if TYPE_CHECKING:
    from procsv.ipc.places import Places

STACKS_BYTES_MAX = 2**20  # of what faulthandler has written; hundreds of threads fit in


def last_words(places: Places, incarnation: int) -> LastWords | None:
    """What its excepthook wrote of the exception that ended it."""
    try:
        return msgspec.json.decode(places.last_words(incarnation).read_bytes(), type=LastWords)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def stacks(places: Places, incarnation: int) -> str:
    """What faulthandler wrote of its threads."""
    try:
        with places.stacks(incarnation).open("rb") as file:
            return file.read(STACKS_BYTES_MAX).decode(errors="replace")
    except OSError:
        return ""


def clear(places: Places, incarnation: int) -> None:
    """Removes words and stacks, once the report of the crash is written: one of each a crash would pile up for months."""
    places.last_words(incarnation).unlink(missing_ok=True)
    places.stacks(incarnation).unlink(missing_ok=True)


def memory_step(places: Places) -> int:
    """The step of the newest whole snapshot in shared memory; NO_STEP if there is none."""
    try:
        return max((info.step for info in scan(places.shm_dir)), default=NO_STEP)
    except OSError:
        return NO_STEP
