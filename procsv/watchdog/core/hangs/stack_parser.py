"""Parse faulthandler's stacks and Python's tracebacks, and find the frame that matters.

Used by escalation.py, causes.py and services.py. Pure: text in, words out. A dump of faulthandler
shows either the main thread alone, or all threads from the newest to the oldest. The oldest is the
main thread. Each thread lists its innermost frame first.
"""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

import msgspec

import procsv

_TITLE = re.compile(r"^(Current thread .*|Thread .*|Stack )\(most recent call first\):$")
_FRAME = re.compile(r'^ {2}File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
_RAISED = "Traceback (most recent call last):\n"
_FRAME_RAISED = re.compile(r'^ {2}File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.*)$')
_FATAL = re.compile(r"^Fatal Python error: (?P<what>.*)$", re.MULTILINE)

# Frames of files below these paths are not the program's own.
_LIBRARIES = tuple({*sysconfig.get_paths().values(), str(Path(procsv.__file__).parent), "<frozen", "<string>"})


class Frame(msgspec.Struct, frozen=True):
    file: str
    line: str
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"

    @property
    def is_the_programs(self) -> bool:
        return not self.file.startswith(_LIBRARIES)


class Stack(msgspec.Struct, frozen=True):
    """The stack of one thread, innermost frame first."""

    title: str
    frames: tuple[Frame, ...]

    @property
    def is_alone(self) -> bool:
        """Whether the dump was requested for this thread alone."""
        return self.title.startswith("Stack ")

    @property
    def is_current(self) -> bool:
        """Whether this thread was running when the dump was made. After a crash, this is the thread
        that crashed.
        """
        return self.title.startswith("Current ")


def read_stacks(text: str) -> list[Stack]:
    """Return the threads of the first dump in `text`, in its order.

    A line "Fatal Python error" ends a dump that comes before it. If no dump comes before that line,
    the first dump follows it.
    """
    found: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        title = _TITLE.match(line)
        if title is not None:
            found.append((title[1], []))
        elif (frame := _FRAME.match(line)) is not None and found:
            found[-1][1].append(Frame(frame["file"], frame["line"], frame["function"]))
        elif found and _FATAL.match(line):
            break  # a second dump
    return [Stack(title, tuple(frames)) for title, frames in found]


def where_it_stood(text: str) -> str:
    """Return where the main thread was; "" if `text` has no dump.

    That is the program's own innermost frame, and the innermost frame of the library that it had
    called.
    """
    stacks = read_stacks(text)
    return _describe(next((stack for stack in stacks if stack.is_alone), stacks[-1])) if stacks else ""


def where_it_crashed(text: str) -> str:
    """Return where the thread was that a fatal signal hit; "" if `text` has no such dump."""
    fatal = _FATAL.search(text)
    current = [stack for stack in read_stacks(text[fatal.start() :]) if stack.is_current] if fatal else []
    return _describe(current[0]) if current else ""


def where_it_was_raised(traceback: str) -> str:
    """Return the frame that raised an exception; "" if there is no traceback.

    That is the innermost frame of the program's own files, or the innermost frame of all if none
    is from these files.
    """
    frames: list[Frame] = []
    for line in traceback.rpartition(_RAISED)[2].splitlines():  # the last traceback, if its causes have their own
        if (found := _FRAME_RAISED.match(line)) is not None:
            frames.insert(0, Frame(found["file"], found["line"], found["function"]))
        elif frames and not line.startswith("  "):
            break  # the exception itself, whose text may contain unrelated frames
    return str(next((frame for frame in frames if frame.is_the_programs), frames[0])) if frames else ""


def _describe(stack: Stack) -> str:
    if not stack.frames:
        return ""
    inner = stack.frames[0]
    own = next((frame for frame in stack.frames if frame.is_the_programs), None)
    if own is None or own == inner:
        return str(inner)
    return f"{own}, which had called {inner}"
