"""Publish in the shared logdir how to reach the coordinator of a run on several machines.

Each start of a coordinator begins a term with its own number.  The term's file is created whole and
never changed.  It contains the run's keys, unless they are derived from a secret that all launches
have, so only the user can read it.  Members look for the highest term of their own start of the
job, and ignore the terms of other starts.  A coordinator that cannot get the logdir says so in a
term, too, so that its members do not wait for it.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Annotated

import msgspec

from procsv.base.encoding import decode_json, encode_json
from procsv.base.run.paths import RunPaths
from procsv.base.system.atomic_file import create_file
from procsv.base.system.data_file import read_data

TERM_BYTES_MAX = 2**16
NAME = re.compile(r"term-(\d{1,18})\.json")
PRIVATE = 0o700
TRIES_MAX = 1000  # to find a free number; each failure means that another coordinator has just begun

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a term's file."""

    number: Annotated[int, msgspec.Meta(ge=0)] = 0  # as in the file's name
    scheduler: str  # identifies the start of the job (procsv/base/placement.py)
    run: str
    hosts: tuple[str, ...] = ()  # names and addresses of the coordinator's machine, the most likely first
    port: Port = 0
    server_key: str = ""  # the coordinator's public CURVE key, in Z85
    client_secret: str = ""  # each member's key pair is derived from it
    secret: str = ""  # fingerprint of the launches' secret; "" if they have none, and the keys are stored here
    refused: str = ""  # why the coordinator has refused the run; "" if it has not
    exit_code: int = 0  # for the members, if the run is refused

    def __repr__(self) -> str:
        return f"Term({self.number}, {self.scheduler!r}, {self.run!r})"  # the secret must not appear in a log


def write_term(paths: RunPaths, term: Term) -> Term:
    """Makes `term` the logdir's newest; returns it with its number.

    The file is created as a whole, so nobody reads half of it, and two coordinators never get the
    same number.
    """
    directory = paths.terms
    directory.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    number = max(_numbers(directory), default=0)
    for _ in range(TRIES_MAX):
        number += 1
        numbered = msgspec.structs.replace(term, number=number)
        with contextlib.suppress(FileExistsError):
            create_file(_path(directory, number), encode_json(numbered), 0o600)
            return numbered
    raise OSError(f"{directory} keeps getting a new term")


def forget_terms(paths: RunPaths, below: int) -> None:
    """Removes the terms with lower numbers.  The caller has the logdir, so their runs are over."""
    for number in _numbers(paths.terms):
        if number < below:
            with contextlib.suppress(OSError):
                _path(paths.terms, number).unlink()


def newest_term(paths: RunPaths, scheduler: str) -> Term | None:
    """Returns the highest term of that start of a job; None if there is none yet."""
    for number in sorted(_numbers(paths.terms), reverse=True):
        term = _read_term(_path(paths.terms, number))
        if term is not None and term.scheduler == scheduler and term.number == number:
            return term
    return None


def lost_term(paths: RunPaths, scheduler: str) -> Term | None:
    """Returns the newest term of any other start of a job; None if there is none.

    Its coordinator was killed or lost, because a coordinator that ends removes its terms.
    """
    terms = [_read_term(_path(paths.terms, number)) for number in _numbers(paths.terms)]
    others = [term for term in terms if term is not None and term.scheduler != scheduler and not term.refused]
    return max(others, key=lambda term: term.number, default=None)


def withdraw_terms(paths: RunPaths, run: str) -> None:
    """Removes the terms of that run, whose keys are of no use any more."""
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
    """Reads a term; None if there is none, or the file is invalid."""
    try:
        return decode_json(read_data(path, TERM_BYTES_MAX), Term)
    except (OSError, msgspec.DecodeError):
        return None
