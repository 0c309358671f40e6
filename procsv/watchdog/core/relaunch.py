"""Decide what a launch does with the run that it finds in its directory.

A run is identified by its target, its arguments and the program's own files. A launch resumes a run
only if it asks for the same training. Otherwise, a sweep over parameters would train once, and
report that result for every setting. Some facts may be unknown, because an older procsv wrote the
record, or a checkpoint was deleted. Then the launch starts the program, which is what happens
without procsv.

Used by edge/opening/take_logdir.py, which gathers the facts. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class RelaunchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The existing run, and what this launch asks for."""

    directory: str  # the directory of the run, as text for people
    ran: str  # the command line of its last launch
    asked: str  # the command line of this launch
    is_other: bool  # the two command lines differ in the program or its arguments
    names_logdir: bool  # this launch has --logdir, so the user means the run that is there
    resumes: bool  # this launch has --resume
    holds_results: bool  # the run has steps, a checkpoint, or a program that ended
    is_complete: bool  # the run was trained to its end, and its last state is still there
    is_on_disk: bool = True  # its files can be checked; False if the directory is a URL
    at: str = ""  # the last step, for people: "step 50"
    ended: str = ""  # date and time, for people
    changed: Sequence[str] | None = None  # the program's own files that have changed; None: unknown
    listed: str = ""  # their names, for people


class GoOn(msgspec.Struct, frozen=True):
    """Start the program, as the next launch of the existing run.

    `text`: what to tell the user; "": nothing. `has_other_args`: the earlier results were made with
    other arguments.
    """

    text: str = ""
    has_other_args: bool = False


class Adopt(msgspec.Struct, frozen=True):
    """Start the program, and let it choose a logdir of its own.

    The earlier launches in this directory had another command line, and produced nothing.
    """


class Refuse(msgspec.Struct, frozen=True):
    text: str


class NothingToDo(msgspec.Struct, frozen=True):
    text: str


def decide(found: RelaunchFacts) -> GoOn | Adopt | Refuse | NothingToDo:
    """Decide whether this launch starts the program, refuses to start, or has nothing to do."""
    if found.is_other and not found.holds_results:
        return Adopt()
    if found.is_other and not found.names_logdir:
        return Refuse(
            f"not started: the run in {found.directory} was made by `{found.ran}`, and this command says `{found.asked}`. "
            "For a run of its own: procsv launch --new …, or --logdir with another directory. "
            f"To go on with that run: procsv launch --logdir {found.directory} …"
        )
    if found.is_complete and not found.resumes:
        new = "`--new` trains again" + (" (without --logdir)" if found.names_logdir else "")
        choice = f"{new}, `--resume` runs the program again from its last state"
        if found.changed:
            return Refuse(
                f"not started: the run in {found.directory} is complete at {found.at} since {found.ended}, and "
                f"{found.listed} has changed since then; {choice}"
            )
        if found.changed is not None and not found.is_other and found.is_on_disk:
            return NothingToDo(f"nothing to do: complete at {found.at} since {found.ended}; {choice}")
    if found.is_other:
        return GoOn(f"the run was made by `{found.ran}`, and goes on with `{found.asked}`", has_other_args=True)
    return GoOn()
