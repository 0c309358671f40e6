"""Versions of TensorFlow that procsv is tested with, and the warning beyond them.

Used by attach.py, when a program makes its first Supervisor or monitored session, and by scripts/versions.  procsv reads
Savers and sessions closer than their documentation goes, so that another version may differ.
"""

from __future__ import annotations

import re

OLDEST, NEWEST = (2, 16), (2, 21)

_said: set[str] = set()


def find_warning(version: str) -> str:
    """What there is to say of TensorFlow `version`; "" if it is within what is tested, or no version at all."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or OLDEST <= (found := (int(match[1]), int(match[2]))) <= NEWEST:
        return ""
    side = "older" if found < OLDEST else "newer"
    tested = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    return f"TensorFlow {version} is {side} than what this procsv is tested with ({tested}): drill your program before you rely on it"


def find_new_warning(version: str) -> str:
    """The same, but only once in a process."""
    warning = "" if version in _said else find_warning(version)
    _said.add(version)
    return warning
