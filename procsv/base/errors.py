"""Define errors by who is at fault: the user, a peer, or procsv.

They are raised everywhere and caught at the edges.  The command line prints a UserError as one
message, a receiver counts a PeerError and goes on, and nothing catches a ProcsvBug.
"""

from __future__ import annotations

import re

from procsv.base import exit_codes


class UserError(Exception):
    """Something that the person who runs the program can change.  The text says what.

    `exit_code`: the exit code of `procsv launch` if this error stops it.
    """

    def __init__(self, message: str, exit_code: int = exit_codes.USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class LogdirLocked(UserError):
    """Another run owns the logdir, or it cannot be written."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=exit_codes.LOGDIR_UNUSABLE)


class PeerError(Exception):
    """A peer has sent something malformed, oversized or out of turn.  It is counted, and the process goes on."""


class ProcsvBug(Exception):
    """An impossible state.  It stops the process immediately; the crash report shows how it came about."""


def strip_numbers(error: str) -> str:
    """Removes the numbers from an error's text, so that repeats of one problem compare equal."""
    return re.sub(r"\d+(\.\d+)?( [KMGTPE]?i?B\b)?", "#", error)
