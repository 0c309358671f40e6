"""Parser of faulthandler's stacks, and of tracebacks: find the frame that matters.

Used by escalation.py, restart_policy.py and by crash reports.  Pure: text in, words out.  A dump has one thread, the main
one, or lists all from the newest to the oldest, which is the main thread; each has its innermost frame first.
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

# Frames in here are not the program's own.
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
    """One thread's, innermost frame first."""

    title: str
    frames: tuple[Frame, ...]

    @property
    def is_alone(self) -> bool:
        """Whether its thread was asked for its own stack."""
        return self.title.startswith("Stack ")

    @property
    def is_current(self) -> bool:
        """Whether it ran when the dump was made; after a crash, it is the one that crashed."""
        return self.title.startswith("Current ")


def read_stacks(text: str) -> list[Stack]:
    """The threads of what was written before `text` tells of an error, or after it if it begins with that, as they stand there."""
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
    """Where the main thread was, for people: the program's own innermost frame, and the library's that it had called."""
    stacks = read_stacks(text)
    return _describe(next((stack for stack in stacks if stack.is_alone), stacks[-1])) if stacks else ""


def where_it_crashed(text: str) -> str:
    """Where the thread was that a fatal signal hit; "" without such a dump."""
    fatal = _FATAL.search(text)
    current = [stack for stack in read_stacks(text[fatal.start() :]) if stack.is_current] if fatal else []
    return _describe(current[0]) if current else ""


def where_it_was_raised(traceback: str) -> str:
    """Where an exception comes from, by its traceback: the program's own innermost frame, or else the innermost one."""
    frames: list[Frame] = []
    for line in traceback.rpartition(_RAISED)[2].splitlines():  # the last one, where it has a cause with one of its own
        if (found := _FRAME_RAISED.match(line)) is not None:
            frames.insert(0, Frame(found["file"], found["line"], found["function"]))
        elif frames and not line.startswith("  "):
            break  # the exception itself; its text may show frames of other things
    return str(next((frame for frame in frames if frame.is_the_programs), frames[0])) if frames else ""


def _describe(stack: Stack) -> str:
    if not stack.frames:
        return ""
    inner = stack.frames[0]
    own = next((frame for frame in stack.frames if frame.is_the_programs), None)
    if own is None or own == inner:
        return str(inner)
    return f"{own}, which had called {inner}"
