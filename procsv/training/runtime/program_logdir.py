"""Choose the directory to use under `procsv launch` when the program names one.

attach.py uses it.  Without --logdir the run adopts the first directory that the program names; with
--logdir, the first one inside the given logdir.  Later starts use the adopted directory.  A program
whose directory is new at each start (a time stamp, mkdtemp) gets the run's directory instead, but
only if its arguments are the run's arguments.  With --map-logdir, as in a drill, the run's logdir
replaces any directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from procsv.base.errors import UserError
from procsv.base.location import local_path
from procsv.base.outcome import NO_STEP
from procsv.base.run.checkpoint_lock import hold_checkpoint_lock
from procsv.base.run.manifest import MANIFEST_SUFFIX, STATE_FILE
from procsv.base.run.paths import anchor, local_home
from procsv.base.run.run_file import read_run
from procsv.base.run.saved_step import saved_step
from procsv.ipc.messaging.start import Start
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.log import say

MADE_BY_MKDTEMP = re.compile(r".*[a-z0-9_]{8}")
_PATTERNS = ("*.data-*", "*.meta", "*.index", f"*{MANIFEST_SUFFIX}", STATE_FILE)  # linked back in this order
_PART = rf"(\.data-\d+-of-\d+|\.meta|{re.escape(MANIFEST_SUFFIX)})"


def settle_logdir(runtime: Runtime, given: str) -> str:
    """Returns the directory to use for `given`; UserError, with what to pass, if there is none."""
    logdir = _choose_logdir(runtime, given)
    CarriedCheckpoints(runtime.connection.start).put_back_links()
    return logdir


def _choose_logdir(runtime: Runtime, given: str) -> str:
    start = runtime.connection.start
    if local_home(given) == start.checkpoint_dir:
        runtime.name_logdir(given)
        return given
    if runtime.named_logdir not in ("", given):
        raise _mismatch(given, start)
    if start.naming == "mapped":
        _say_once(runtime, given, f"using {start.logdir} instead of {given}, which the program names")
        return start.logdir
    if local_path(given) is None or not start.may_adopt(local_home(given)):
        raise _mismatch(given, start)
    if start.has_other_args or (start.root and _is_told(given, start.args, start.checkpoint_dir)):
        anew = "`procsv launch --new …`, or name the directory with --logdir"
        raise UserError(
            f"the program uses {given}, but this run's logdir is {start.logdir}. For a new run: "
            + (anew if start.naming == "anywhere" else "another --logdir")
            + f". To continue this run: procsv launch --logdir {shlex.quote(start.logdir)} --map-logdir …"
        )
    if not start.root and start.naming == "inside" and saved_step(start.checkpoint_dir) != NO_STEP:
        _say_once(
            runtime,
            given,
            f"the program names {given}, but the run continues in {start.logdir}, where its checkpoints are",
        )
        return start.logdir
    if not start.root:
        runtime.adopt_logdir(local_home(given))
        runtime.name_logdir(given)
        return given
    other = "`procsv launch --new`" if start.naming == "anywhere" else "another --logdir"
    _say_once(
        runtime,
        given,
        f"the program names {given} this time, but the run continues in {start.logdir}; for a new run, use {other}",
    )
    return start.logdir


def _say_once(runtime: Runtime, given: str, text: str) -> None:
    if runtime.name_logdir(given):
        say(text)


def _mismatch(given: str, start: Start) -> UserError:
    if start.naming != "mapped" and _is_temporary(given):
        return UserError(
            f"the program's logdir is {anchor(given)}, a temporary directory, but the run's is {start.logdir}; "
            f"to make it use the run's, start it with `procsv launch --logdir {shlex.quote(start.logdir)} "
            "--map-logdir …`, or give the program {logdir} as the argument that names its directory"
        )
    # Without --logdir the run would continue in the program's directory.
    leave_out = " or without --logdir" if start.naming == "inside" and local_path(given) is not None else ""
    mapped = "" if start.naming == "mapped" else ", or add --map-logdir to make it use the run's"
    return UserError(
        f"the program's logdir is {anchor(given)}, but the run's is {start.logdir}; give the program {{logdir}} as "
        f"an argument that names its directory, or start it with `procsv launch --logdir {shlex.quote(given)} …`"
        f"{leave_out}{mapped}"
    )


def _is_temporary(given: str) -> bool:
    """Whether mkdtemp() made it or a parent of it, so that the next start will name another one."""
    root, place = Path(tempfile.gettempdir()), Path(anchor(given))
    return any(one.parent == root and MADE_BY_MKDTEMP.fullmatch(one.name) for one in (place, *place.parents))


def _is_told(given: str, args: tuple[str, ...], logdir: Path) -> bool:
    """Whether an argument names `given` or a parent of it that does not hold the run's logdir."""
    for place in (Path(given), *Path(given).parents):
        if place.name and any(arg.rpartition("=")[2].rstrip("/") == str(place) for arg in args):
            return not logdir.is_relative_to(local_home(place))
    return False


class CarriedCheckpoints:
    """Keeps checkpoints while the program deletes the logdir, as some programs do at each start.

    A run that has adopted its logdir keeps its own files in another directory.  logdir_deletion.py
    has the checkpoints linked into that directory before the deletion, and `settle_logdir` links
    them back when the program names the logdir to its session.  Hard links are safe because
    checkpoints are never written in place.  The checkpoints of a training that has reached its end
    are not kept: the next training starts from the beginning.
    """

    def __init__(self, start: Start) -> None:
        self._start, self._logdir = start, start.checkpoint_dir
        self._place = start.paths.home / "carried"

    def is_due(self) -> bool:
        """Whether to carry over what the program is about to delete."""
        run = read_run(self._start.paths.run_json) if self._start.root else None
        return run is not None and run.began_step != NO_STEP and any(self._logdir.glob("*.index"))

    def link_checkpoints(self) -> None:
        """Links the logdir's checkpoints while the checkpoint service changes nothing there.

        Raises OSError if links are impossible, for example across filesystems; then no link is
        kept.  A kill in here comes before any deletion.  Files of an interrupted `put_back_links`
        stay.
        """
        self._place.mkdir(mode=0o700, exist_ok=True)
        try:
            with hold_checkpoint_lock(self._logdir):
                for index in sorted(self._logdir.glob("*.index")):
                    self._link(_parts_of(index))
                self._link([self._logdir / STATE_FILE])
        except OSError:
            shutil.rmtree(self._place)
            raise

    def _link(self, files: list[Path]) -> None:
        """Links all `files`, or none if one disappears meanwhile.

        A process that deletes a checkpoint without the lock removes its index first, and the index
        comes last here.
        """
        making = self._place / ".new"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        with contextlib.suppress(FileNotFoundError):
            for file in files:
                os.link(file, making / file.name)
            for file in files:
                (making / file.name).replace(self._place / file.name)
        shutil.rmtree(making)

    @property
    def is_kept(self) -> bool:
        return self._place.is_dir()

    def put_back_links(self) -> None:
        """Links the checkpoints back; files that survived the deletion stay as they are.

        A kill in here loses nothing: all links are still kept.
        """
        if not self.is_kept:
            return
        self._logdir.mkdir(parents=True, exist_ok=True)
        with hold_checkpoint_lock(self._logdir):
            for file in _files(self._place):
                with contextlib.suppress(FileExistsError):
                    os.link(file, self._logdir / file.name)
        shutil.rmtree(self._place)


def _parts_of(index: Path) -> list[Path]:
    """The files of the checkpoint with that index; the index comes last."""
    is_part = re.compile(re.escape(index.name.removesuffix(".index")) + _PART).fullmatch
    return [*(path for path in index.parent.iterdir() if is_part(path.name)), index]


def _files(directory: Path) -> Iterator[Path]:
    for pattern in _PATTERNS:
        yield from directory.glob(pattern)
