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
    """Data from another process is malformed, oversized, out of turn, or no longer there.

    The receiver counts the error, or does without the data, and goes on.
    """


class ProcsvBug(Exception):
    """An impossible state.

    It stops the process immediately, and the crash report shows what led to it.
    """


def strip_numbers(error: str) -> str:
    """Replaces each number in an error's text, with its unit of bytes, by `#`.

    So repeats of one problem compare equal.
    """
    return re.sub(r"\d+(\.\d+)?( [KMGTPE]?i?B\b)?", "#", error)
