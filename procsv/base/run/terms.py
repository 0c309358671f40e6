"""Terms of coordinators: where the coordinator of a run on several machines is found, in the logdir that all of them see.

Each start of a coordinator is a term with a number of its own, in a file that is made whole and never changed.  It has the keys of the
run, unless they follow from a secret that all launches have, so it is the user's alone.  Members look for the highest term of their own scheduler's start; what an earlier start has left is
nothing to them.  A coordinator that cannot have the logdir says so in a term, too, so that its members do not wait for it.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Annotated

import msgspec

from procsv.base.encoding import decode_json, encode_json
from procsv.base.run.paths import RunPaths
from procsv.base.system.data_file import read_data

TERM_BYTES_MAX = 2**16
NAME = re.compile(r"term-(\d{1,18})\.json")
PRIVATE = 0o700
TRIES_MAX = 1000  # to find a number that nobody has; each loss means that another coordinator has just begun

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a term's file."""

    number: Annotated[int, msgspec.Meta(ge=0)] = 0  # as in its name
    scheduler: str  # which start of which job it is (procsv/base/placement.py)
    run: str
    hosts: tuple[str, ...] = ()  # names and addresses of the coordinator's machine, the likeliest first
    port: Port = 0
    server_key: str = ""  # of CURVE, in Z85: the coordinator's public one
    client_secret: str = ""  # from which the key pair of each member follows
    secret: str = ""  # the fingerprint of the secret that the keys follow from; then they are not in here
    refused: str = ""  # why there is no run
    exit_code: int = 0  # of the members, where it is refused

    def __repr__(self) -> str:
        return f"Term({self.number}, {self.scheduler!r}, {self.run!r})"  # the secret belongs in no log


def write_term(paths: RunPaths, term: Term) -> Term:
    """Makes `term` the newest one of the logdir; it, with its number.

    The file is linked in whole, so nobody reads a half of it, and of two coordinators one gets the number.  Killed before that: a
    dot-file stays, which the next coordinator's replaces or leaves.
    """
    directory = paths.terms
    directory.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    draft = directory / f".term.{term.run}.new"
    number = max(_numbers(directory), default=0)
    for _ in range(TRIES_MAX):
        number += 1
        numbered = msgspec.structs.replace(term, number=number)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(encode_json(numbered))
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, _path(directory, number))
        except FileExistsError:
            continue
        finally:
            draft.unlink(missing_ok=True)
        return numbered
    raise OSError(f"{directory} has a new term each time it is looked at")


def forget_terms(paths: RunPaths, below: int) -> None:
    """Removes the terms before that number, whose runs are over: who calls has the logdir."""
    for number in _numbers(paths.terms):
        if number < below:
            with contextlib.suppress(OSError):
                _path(paths.terms, number).unlink()


def newest_term(paths: RunPaths, scheduler: str) -> Term | None:
    """The highest term of that start of a job; None if there is none yet."""
    for number in sorted(_numbers(paths.terms), reverse=True):
        term = _read_term(_path(paths.terms, number))
        if term is not None and term.scheduler == scheduler and term.number == number:
            return term
    return None


def lost_term(paths: RunPaths, scheduler: str) -> Term | None:
    """The newest term of any other start of a job: its coordinator was killed or lost, as one that ends removes its terms."""
    terms = [_read_term(_path(paths.terms, number)) for number in _numbers(paths.terms)]
    others = [term for term in terms if term is not None and term.scheduler != scheduler and not term.refused]
    return max(others, key=lambda term: term.number, default=None)


def withdraw_terms(paths: RunPaths, run: str) -> None:
    """Removes what that run has written there: its keys are of no use to anybody any more."""
    for number in _numbers(paths.terms):
        term = _read_term(_path(paths.terms, number))
        if term is not None and term.run == run:
            with contextlib.suppress(OSError):
                _path(paths.terms, number).unlink()


def _path(directory: Path, number: int) -> Path:
    return directory / f"term-{number}.json"


def _numbers(directory: Path) -> list[int]:
    try:
        paths = list(directory.iterdir())
    except OSError:
        return []
    return [int(found[1]) for path in paths if (found := NAME.fullmatch(path.name))]


def _read_term(path: Path) -> Term | None:
    """What lies there, if it is a term."""
    try:
        return decode_json(read_data(path, TERM_BYTES_MAX), Term)
    except (OSError, msgspec.DecodeError):
        return None
