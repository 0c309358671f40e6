"""run.json: the identity and the state of a run, in one small file that is also right when no run is active.

Written by the one process that runs the run, and replaced whole.  Read by the command line, by the next launch and by people.
Never says whether the run is active: its writer may have been killed since, so `is_active` asks the machine.

Whoever can write to a logdir can put such a file there, and name any process and directory in it.  So a file is believed as far as the directories carry
the id of the logdir in which it lies, and nobody else can write there: a copy of the logdir has another id, and names no process or directory of the
original.  The process is the file's owner's.  What acts on a run asks besides that the process holds the run's lock.
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

FINAL_STATES = frozenset({"done", "failed", "stopped"})  # a watchdog that writes one of these has nothing left to do


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of run.json.  Times are Unix seconds, durations seconds, steps NO_STEP where there is none."""

    version: int = VERSION
    run: str  # run id: 16 hexadecimal digits, new with every launch
    target: str
    args: tuple[str, ...] = ()
    program: str = ""  # the target's file, from the run's own directory: the project may be moved; "" of a module
    logdir: str  # of the checkpoints and events: a directory's real path, or a URL
    root: str = ""  # the directory with the run's own files, where the logdir is one that the program has named
    run_dir: str
    shm_dir: str

    pid: int  # of the watchdog, with what tells it from a later process of that pid
    started: float
    boot: str

    state: str  # in lower case: pending … running … done, failed, stopped
    task: str = str(TRAINER)  # whose state is saved, and what stands here: the trainer, or the chief of several tasks
    incarnation: int  # of it; goes on counting in the next launch
    step: int = NO_STEP  # global step as last read
    steps_total: int = NO_STEP  # at which training ends, where a hook or the command line has told
    fit: FitPlace | None = None  # how far a fit of Keras has come, as last read
    loss: Loss | None = None  # of that fit, as of its newest snapshot
    importing: str = ""  # the package whose import takes its time
    began_step: int = NO_STEP  # of the training that has not come to its end yet, through all launches of it
    durable_step: int = NO_STEP  # of the newest checkpoint that is verified on disk
    memory_step: int = NO_STEP  # of the newest whole snapshot in shared memory
    mirror_step: int = NO_STEP  # of the copy that another machine keeps of such a snapshot
    mirror_host: str = ""  # that machine; "": none does
    restarts: int = 0  # of the trainer, in this launch
    no_progress_count: int = 0  # failures since a step last became durable
    last_exit: LastExit | None = None
    next_restart_in: float | None = None  # seconds, while backing off
    awaits_room: bool = False  # a full disk has ended a task, which starts again when there is room
    step_s: float = 0.0  # what a step takes, by the median; 0.0 as long as nobody knows
    save_error: str | None = None  # why the newest state could not be saved, as long as that lasts
    next_save_in: float | None = None  # seconds until that is tried again
    ground_error: str | None = None  # what the run stands on and is lost: directories, sockets, locks
    protected: bool | None = None  # whether the program's state is saved; None as long as nobody can know
    habit: SaveHabit = STEPS  # what the steps here count, and whether the program's last start restored anything
    goodput: float = 0.0  # share of the run's time, in all its launches, that went into steps which were kept
    launch_goodput: float = 0.0  # the same of the last launch alone
    started_at: float
    ended_at: float | None = None
    exit_code: int | None = None  # of the watchdog, once the run is over
    gave_up: str = ""  # why it was given up, once it is

    @property
    def paths(self) -> RunPaths:
        return RunPaths(local_home(self.root or self.logdir), Path(self.run_dir), Path(self.shm_dir))

    @property
    def has_local_logdir(self) -> bool:
        """Whether system calls reach it; False: it is a URL."""
        return not is_remote(self.logdir)

    @property
    def checkpoint_dir(self) -> Path:
        """The directory on this machine that stands for the logdir."""
        return local_home(self.logdir)

    @property
    def watchdog(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.started, self.boot)

    @property
    def is_active(self) -> bool:
        """Whether the process that wrote this still runs on this machine, since this boot."""
        return self.watchdog.is_alive()


def read_run(path: Path) -> RunFile | None:
    """The run in `path`; None if there is no such file, or it is not one of ours (another version, garbled)."""
    try:
        run = decode_sealed(stale.try_again(lambda: read_data(path)), RunFile, may_lack_seal=True)
    except (OSError, msgspec.DecodeError):
        return None
    return run if run.version == VERSION else None


def find_run_in(paths: RunPaths) -> RunFile | None:
    """The run in a logdir, wherever that lies by now; None as from `read_run`.

    A logdir that was moved has taken its run along.  A copy has only the past: its id is another one, so the original's
    process and directories are not believed to be its own.
    """
    run = read_run(paths.run_json)
    if run is None:
        return None
    run = believed(run, paths.run_json)
    is_here = not run.has_local_logdir or run.paths.logdir == paths.logdir
    return run if is_here else _moved(run, paths.logdir)


def _moved(run: RunFile, directory: Path) -> RunFile:
    """`run` in its new directory; a logdir that it had adopted may have moved with it, and lies at the same place from there."""
    if not run.root:
        return msgspec.structs.replace(run, logdir=str(directory))
    logdir = os.path.realpath(directory / os.path.relpath(run.logdir, run.root))
    return msgspec.structs.replace(run, root=str(directory), logdir=logdir if Path(logdir).is_dir() else run.logdir)


def write_run(path: Path, run: RunFile, durable: bool, replace: Callable[..., None] = replace_file) -> None:
    """Replaces `path`.  `durable` at changes of state; a lost step number is read again anyway.  `replace`: in whose way."""
    data = msgspec.json.format(seal(encode_json(run)), indent=2)
    replace(path, data + b"\n", durable=durable, mode=record_mode(path.parent))


def believed(run: RunFile, run_json: Path) -> RunFile:
    """`run`, read from `run_json`, without what is not its own: of no boot, its process is not alive."""
    try:
        owner = run_json.stat().st_uid
    except OSError:
        return msgspec.structs.replace(run, boot="")
    home = run_json.parent
    if not _has_own_directories(run.paths, run_name(home, owner), owner):
        own = find_paths(home.parent)
        return msgspec.structs.replace(run, boot="", run_dir=str(own.run_dir), shm_dir=str(own.shm_dir))
    with contextlib.suppress(psutil.Error):  # it is dead
        if psutil.Process(run.pid).uids().effective != owner:
            return msgspec.structs.replace(run, boot="")
    return run


def _has_own_directories(paths: RunPaths, name: str, owner: int) -> bool:
    """Whether both have that name, under whatever runtime directory, and nobody else can write there."""
    run_dir, shm_dir = paths.run_dir, paths.shm_dir
    is_named = run_dir.is_absolute() and run_dir.name in (f"procsv-{name}", f"procsv-{owner}-{name}")
    is_shm_named = shm_dir in (SHM_ROOT / f"procsv-{owner}-{name}", run_dir / "shm")
    return is_named and is_shm_named and _is_private(run_dir, owner) and _is_private(shm_dir, owner)


def _is_private(directory: Path, owner: int) -> bool:
    try:
        info = directory.lstat()
    except OSError:
        return True  # there is nothing to be misled to
    return stat.S_ISDIR(info.st_mode) and info.st_uid == owner and not stat.S_IMODE(info.st_mode) & 0o022


def holds_run_lock(run: RunFile) -> bool:
    """Whether the process of `run` has its lock file open, removed or not; PermissionError of another user's process.

    Into one of ours that has keys only root looks: of that, it is known that somebody has the lock.
    """
    try:
        return has_open(run.pid, run.paths.run_lock)
    except PermissionError:
        if psutil.Process(run.pid).uids().effective != os.geteuid():
            raise
        return FileLock(run.paths.run_lock).is_held()
