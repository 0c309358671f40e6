"""The directory that a program names, under `procsv launch`: the run's logdir, or what becomes of it.

Used by attach.py and training_session.py.  Without --logdir the run adopts the first directory that the program names, and goes on
in it: a program whose directory is new at each start (a time stamp, mkdtemp) gets the run's in its place.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from procsv.base.errors import UserError
from procsv.base.run.paths import local_home
from procsv.base.text import is_remote
from procsv.training.runtime.context import Runtime


def settle_logdir(runtime: Runtime, given: str) -> str:
    """The directory to use where the program says `given`.  UserError, saying what to pass, if it is not to be had."""
    start = runtime.start
    if local_home(given) == start.checkpoint_dir:
        runtime.named_logdir = runtime.named_logdir or given
        return given
    if not start.may_adopt or is_remote(given) or runtime.named_logdir not in ("", given):
        raise _mismatch(given, start.logdir, may_leave_out=not start.may_adopt and not is_remote(given))
    if not start.root:
        runtime.adopt_logdir(local_home(given))
        runtime.named_logdir = given
        return given
    if _is_told(given, start.args, start.checkpoint_dir):
        raise UserError(
            f"this run's logdir is {start.logdir}, and the program is told to use {given}: begin a new run with "
            "`procsv launch --new …`, or name the directory with --logdir"
        )
    if not runtime.named_logdir:
        runtime.named_logdir = given
        print(
            f"procsv: the program names {given} this time; the run goes on in {start.logdir} "
            "(`procsv launch --new` begins another one)",
            file=sys.stderr,
        )
    return start.logdir


def _mismatch(given: str, logdir: str, *, may_leave_out: bool) -> UserError:
    """`may_leave_out`: without --logdir the run would go on in the program's directory."""
    shown = given if is_remote(given) else os.path.abspath(given)
    launch = f"`procsv launch --logdir {shlex.quote(given)} …`" + (" or without --logdir" if may_leave_out else "")
    return UserError(
        f"the program's logdir is {shown}, but the run's is {logdir}; give the program {{logdir}} as an argument that names its "
        f"directory, as a drill needs it, or start it with {launch}"
    )


def _is_told(given: str, args: tuple[str, ...], logdir: Path) -> bool:
    """Whether an argument names `given`, or a directory around it, and the run's logdir is not in that."""
    for place in (Path(given), *Path(given).parents):
        if place.name and any(arg.rpartition("=")[2].rstrip("/") == str(place) for arg in args):
            return not logdir.is_relative_to(local_home(place))
    return False
