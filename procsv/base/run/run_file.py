"""Read and write run.json: the identity and the state of a run, valid even if no run is active.

Only the watchdog writes it, and replaces it as a whole.  The command line, the next launch and
people read it.  The file never says whether the run is active, because its writer may have been
killed; so `is_active` asks the system.

Anybody who can write to a logdir can put such a file there, and name any process and directory in
it.  So the directories that it names are believed only if their names contain the id of its logdir
and nobody else can write to them.  A copy of the logdir has another id, so the process and
directories of the original are not taken for the copy's.  The process must belong to the file's
owner.  Code that acts on a run also requires that the process holds the run's lock.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from procsv.base.encoding import decode_sealed, encode_json, seal
from procsv.base.identity import TRAINER
from procsv.base.location import is_remote
from procsv.base.outcome import NO_STEP, STEPS, FitPlace, LastExit, Loss, SaveHabit
from procsv.base.run.paths import SHM_ROOT, RunPaths, find_paths, local_home, run_name
from procsv.base.run.records import record_mode
from procsv.base.system import stale
from procsv.base.system.atomic_file import replace_file
from procsv.base.system.data_file import read_data
from procsv.base.system.locks import FileLock
from procsv.base.system.process_state import has_open
from procsv.base.system.processes import ProcessIdentity

VERSION = 1

FINAL_STATES = frozenset({"done", "failed", "stopped"})  # written by a watchdog that has nothing left to do


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of run.json.

    Times are Unix seconds, durations seconds.  A step is NO_STEP if there is none.
    """

    version: int = VERSION
    run: str  # run id: 16 hexadecimal digits, new with every launch
    target: str
    args: tuple[str, ...] = ()
    program: str = ""  # the target's file; relative to the run's own directory, because projects move; "" for a module
    logdir: str  # for checkpoints and events: a directory's real path, or a URL
    root: str = ""  # the directory with the run's own files, if the program has named the logdir
    run_dir: str
    shm_dir: str

    pid: int  # of the watchdog; `started` and `boot` distinguish it from a later process with that pid
    started: float
    boot: str

    state: str  # in lower case: pending … running … done, failed, stopped
    task: str = str(TRAINER)  # the task whose state is saved and described here: the trainer, or the chief
    incarnation: int  # of that task; the next launch continues counting
    step: int = NO_STEP  # global step as last read
    steps_total: int = NO_STEP  # the step at which training ends, if a hook or the command line says so
    fit: FitPlace | None = None  # progress of a Keras fit, as last read
    loss: Loss | None = None  # of that fit, as of its newest snapshot
    importing: str = ""  # the package being imported, if the import takes long
    began_step: int = NO_STEP  # where the unfinished training began, over all its launches
    durable_step: int = NO_STEP  # of the newest checkpoint that is verified on disk
    memory_step: int = NO_STEP  # of the newest whole snapshot in shared memory
    mirror_step: int = NO_STEP  # of the copy of a snapshot that another machine keeps
    mirror_host: str = ""  # the machine that keeps it; "" if there is none
    restarts: int = 0  # of the trainer, in this launch
    no_progress_count: int = 0  # failures since a step last became durable
    last_exit: LastExit | None = None
    next_restart_in: float | None = None  # seconds, while backing off
    awaits_room: bool = False  # a full disk has ended a task, which starts again when there is room
    step_s: float = 0.0  # median duration of a step; 0.0 if unknown
    save_error: str | None = None  # why the newest state cannot be saved; None if it can
    next_save_in: float | None = None  # seconds until the next try
    ground_error: str | None = None  # which of the run's directories, sockets and locks somebody has removed
    protected: bool | None = None  # whether the program's state is saved; None if not known yet
    habit: SaveHabit = STEPS  # what the step numbers here count, and whether the program restores what it saved
    goodput: float = 0.0  # share of the run's time, in all launches, that went into kept steps
    launch_goodput: float = 0.0  # the same for the last launch alone
    started_at: float
    written_at: float = 0.0  # 0.0: by an earlier procsv
    ended_at: float | None = None
    exit_code: int | None = None  # of the watchdog, once the run is over
    gave_up: str = ""  # why the run was given up; "" if it was not

    @property
    def paths(self) -> RunPaths:
        return RunPaths(local_home(self.root or self.logdir), Path(self.run_dir), Path(self.shm_dir))

    @property
    def has_local_logdir(self) -> bool:
        """Whether system calls reach the logdir; False if it is a URL."""
        return not is_remote(self.logdir)

    @property
    def checkpoint_dir(self) -> Path:
        """The directory on this machine that stands for the logdir."""
        return local_home(self.logdir)

    @property
    def seen_at(self) -> float:
        """When the run's watchdog last wrote this.

        The time of the file itself is later in a copy, or in a file from a backup.
        """
        return self.written_at or self.paths.run_json.stat().st_mtime

    @property
    def watchdog(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.started, self.boot)

    @property
    def is_active(self) -> bool:
        """Whether the process that wrote this still runs on this machine, in this boot."""
        return self.watchdog.is_alive()


def read_run(path: Path) -> RunFile | None:
    """Reads run.json at `path`.

    None if there is none, or it is not valid (another version, garbled).
    """
    try:
        run = decode_sealed(stale.try_again(lambda: read_data(path)), RunFile, may_lack_seal=True)
    except (OSError, msgspec.DecodeError):
        return None
    return run if run.version == VERSION else None


def find_run_in(paths: RunPaths) -> RunFile | None:
    """Finds the run in a logdir, even if the logdir was moved or copied; None as from `read_run`.

    A moved logdir still has its run.  A copy has only the records: its id differs, so the process
    and directories of the original are not taken for the copy's.
    """
    run = read_run(paths.run_json)
    if run is None:
        return None
    run = believed(run, paths.run_json)
    is_here = not run.has_local_logdir or run.paths.logdir == paths.logdir
    return run if is_here else _moved(run, paths.logdir)


def _moved(run: RunFile, directory: Path) -> RunFile:
    """Returns `run` with its new directory.

    A logdir that the run has adopted may have moved along, to the same relative path.
    """
    if not run.root:
        return msgspec.structs.replace(run, logdir=str(directory))
    logdir = os.path.realpath(directory / os.path.relpath(run.logdir, run.root))
    return msgspec.structs.replace(run, root=str(directory), logdir=logdir if Path(logdir).is_dir() else run.logdir)


def write_run(path: Path, run: RunFile, durable: bool, replace: Callable[..., None] = replace_file) -> None:
    """Replaces `path`.

    `durable`: set it for changes of state; a step number may be lost, as it is soon written again.
    `replace`: the function that replaces the file.
    """
    data = msgspec.json.format(seal(encode_json(run)), indent=2)
    replace(path, data + b"\n", durable=durable, mode=record_mode(path.parent))


def believed(run: RunFile, run_json: Path) -> RunFile:
    """Returns `run`, read from `run_json`, with only what may be believed (see the module).

    If its directories are not believed, this replaces them by the logdir's own ones.  If they or
    its process are not believed, this removes the boot id, so that the process counts as dead.
    """
    try:
        owner = run_json.stat().st_uid
    except OSError:
        return msgspec.structs.replace(run, boot="")
    home, us = run_json.parent, os.geteuid()
    if owner != us and _has_own_directories(run.paths, run_name(home), us) and _is_locked_by(run):
        return run  # the filesystem gives our files to another user; the lock shows that the run is ours
    if not _has_own_directories(run.paths, run_name(home, owner), owner):
        own = find_paths(home.parent)
        return msgspec.structs.replace(run, boot="", run_dir=str(own.run_dir), shm_dir=str(own.shm_dir))
    with contextlib.suppress(psutil.Error):  # it is dead
        if psutil.Process(run.pid).uids().effective != owner:
            return msgspec.structs.replace(run, boot="")
    return run


def _is_locked_by(run: RunFile) -> bool:
    with contextlib.suppress(OSError):
        return has_open(run.pid, run.paths.run_lock)
    return False


def _has_own_directories(paths: RunPaths, name: str, owner: int) -> bool:
    """Whether both directories have that name, and nobody else can write to them.

    They may be in any runtime directory.
    """
    run_dir, shm_dir = paths.run_dir, paths.shm_dir
    is_named = run_dir.is_absolute() and run_dir.name in (f"procsv-{name}", f"procsv-{owner}-{name}")
    is_shm_named = shm_dir in (SHM_ROOT / f"procsv-{owner}-{name}", run_dir / "shm")
    return is_named and is_shm_named and _is_private(run_dir, owner) and _is_private(shm_dir, owner)


def _is_private(directory: Path, owner: int) -> bool:
    try:
        info = directory.lstat()
    except OSError:
        return True  # there is no directory that could mislead us
    return stat.S_ISDIR(info.st_mode) and info.st_uid == owner and not stat.S_IMODE(info.st_mode) & 0o022


def holds_run_lock(run: RunFile) -> bool:
    """Whether the process of `run` has the run's lock file open, removed or not.

    PermissionError for another user's process.  Only root can inspect a process of ours that has
    keys (forbid_dumps); for such a process, this only checks whether some process holds the lock.
    """
    try:
        return has_open(run.pid, run.paths.run_lock)
    except PermissionError:
        if psutil.Process(run.pid).uids().effective != os.geteuid():
            raise
        return FileLock(run.paths.run_lock).is_held()
