"""Errors by whose fault they are: the user's, a peer's, or ours.

Raised everywhere, caught at the edges: the command line prints a UserError as one message, a receiver counts
a PeerError and goes on, and nothing catches a ProcsvBug.
"""

from __future__ import annotations

import re

from procsv.base import exit_codes


class UserError(Exception):
    """Something the person who runs the program can change.  The text says what.

    `exit_code` is what `procsv launch` ends with when this stops it.
    """

    def __init__(self, message: str, exit_code: int = exit_codes.USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class LogdirLocked(UserError):
    """Another run owns the logdir, or it cannot be written."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=exit_codes.LOGDIR_UNUSABLE)


class PeerError(Exception):
    """A peer said something malformed, oversized or out of turn.  Counted and survived."""


class ProcsvBug(Exception):
    """An impossible state.  Stops the process at once; the crash report tells the story."""


def strip_numbers(error: str) -> str:
    """An error's text without its numbers: the same trouble, however much is free by now and whatever was to be saved."""
    return re.sub(r"\d+(\.\d+)?( [KMGTPE]?i?B\b)?", "#", error)
