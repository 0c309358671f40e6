"""Name the paths of a run, and create its directories.

Every process uses it.  It deletes nothing; cleanup.py and stale_memory.py do.

    <logdir>/procsv/…        run.json, journal, logs, crashes: they outlive the run
                             (if the logdir is a URL: under `local_home`, one directory per URL)
    run_dir  (0700)          sockets, locks, heartbeats: gone after a clean end
    shm_dir  (0700)          snapshot slots and file parcels (ipc/shm): gone after a clean end
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

import msgspec

from procsv.base import exit_codes
from procsv.base.errors import UserError
from procsv.base.identity import TRAINER, TaskId, attempt_name
from procsv.base.location import is_remote
from procsv.base.run.run_id import can_write_id, find_id, make_id, write_id
from procsv.base.service_table import SERVICES

SOCKET_PATH_BYTES_MAX = 107  # sockaddr_un.sun_path without its NUL; a longer path cannot be bound
SHM_ROOT = Path("/dev/shm")


class RunPaths(msgspec.Struct, frozen=True):
    """Every path of one run, derived from the logdir, `run_dir` and `shm_dir`."""

    logdir: Path
    run_dir: Path
    shm_dir: Path
    # Replaces `<logdir>/procsv` if another run uses that.  Deleted at the end of the run, unless it is a member's.
    own_home: Path | None = None
    is_member: bool = False  # these are a member's paths; its logs go to the home of the run that it belongs to

    @property
    def id(self) -> str:
        """The id of this logdir's runs, in the names of both directories and in process marks."""
        return self.run_dir.name.rpartition("-")[2]

    # -- in the logdir -------------------------------------------------------------------------------------
    @property
    def home(self) -> Path:
        return self.own_home or self.logdir / "procsv"

    @property
    def records(self) -> Path:
        """The home; for a member, the home of the run that it belongs to."""
        return self.logdir / "procsv" if self.is_member else self.home

    @property
    def run_json(self) -> Path:
        return self.home / "run.json"

    @property
    def journal(self) -> Path:
        return self.home / "journal.jsonl"

    @property
    def metrics(self) -> Path:
        """Metrics for Prometheus, in its text format."""
        return self.home / "metrics.prom"

    @property
    def logs(self) -> Path:
        return self.records / "logs"

    @property
    def crashes(self) -> Path:
        return self.home / "crashes"

    @property
    def lease(self) -> Path:
        """Tells other machines, which cannot see locks, who writes to the logdir; renewed often."""
        return self.home / "lease.json"

    @property
    def imports(self) -> Path:
        """The program's imports, for the next launch of the same command."""
        return self.home / "imports.json"

    @property
    def terms(self) -> Path:
        """The directory of the terms (terms.py).

        There the coordinator of a run on several machines publishes its address.
        """
        return self.home / "group"

    @property
    def tasks(self) -> Path:
        """The records of a run's members, each in a directory named after the member's task."""
        return self.home / "tasks"

    @property
    def staging(self) -> Path:
        """Checkpoints in the making.

        They are on the logdir's own filesystem, so that a rename can move them into place.
        """
        return self.home / "staging"

    def log(self, task: TaskId, incarnation: int) -> Path:
        is_own = self.is_member and not task.runs_program  # each member machine has its own standby and services
        name = f"{task}-{self.home.name}" if is_own else str(task)
        return self.logs / f"{name}.{incarnation}.log"

    # -- in the run directory ------------------------------------------------------------------------------
    @property
    def control_socket(self) -> Path:
        return self.run_dir / "control.sock"

    def service_socket(self, service: TaskId) -> Path:
        return self.run_dir / f"{service}.sock"

    @property
    def run_lock(self) -> Path:
        """Held by the process that owns the run: the watchdog, or a trainer without a watchdog."""
        return self.run_dir / "run.lock"

    def writer_lock(self, task: TaskId) -> Path:
        """Held by a task's whole process tree.

        The next attempt starts only when the old tree has released it.
        """
        return self.run_dir / ("writer.lock" if task == TRAINER else f"writer.{task}.lock")

    def writer_locks(self) -> list[Path]:
        """Returns the writer locks of all tasks that have run."""
        return sorted(self.run_dir.glob("writer*.lock"))

    def service_lock(self, service: TaskId) -> Path:
        """Held by a service while it lives; a new one serves only when the old one is gone."""
        return self.run_dir / f"{service}.lock"

    def heartbeat(self, task: TaskId, incarnation: int) -> Path:
        return self.run_dir / f"{task}.{incarnation}.heartbeat"

    def last_words(self, task: TaskId, incarnation: int) -> Path:
        """The exception that ended a task, written by its excepthook."""
        return self.run_dir / f"last_words.{attempt_name(task, incarnation)}.json"

    def stacks(self, task: TaskId, incarnation: int) -> Path:
        """The stacks of a task's threads, written by faulthandler."""
        return self.run_dir / f"stacks.{attempt_name(task, incarnation)}.txt"

    @property
    def gate(self) -> Path:
        """Locked while the steps of all tasks are paused (step_gate.py)."""
        return self.run_dir / "gate.lock"

    def steps(self, task: TaskId) -> Path:
        """Locked by a task during each step, if its steps can be paused (step_gate.py)."""
        return self.run_dir / f"steps.{task}.lock"

    def lives(self, task: TaskId) -> Path:
        """Locked by a task as long as it lives, if its steps can be paused (step_gate.py)."""
        return self.run_dir / f"lives.{task}.lock"

    @property
    def loaded(self) -> Path:
        """The newest trainer's imports up to the end of its first step.

        A standby imports them in advance.
        """
        return self.run_dir / "loaded.json"

    @property
    def saver_plan(self) -> Path:
        """The last plan that the checkpoint service received, for its successor."""
        return self.run_dir / "plan.json"

    def event_position(self, writer: str) -> Path:
        return self.run_dir / f"events.{writer}.pos"


def anchor(path: str) -> str:
    """Makes `path` absolute, in case the program changes directory.  Leaves a URL as it is."""
    return path if is_remote(path) else os.path.normpath(Path(path).absolute())


def local_home(logdir: str | Path) -> Path:
    """Returns the local directory for a logdir: itself or, for a URL, one in XDG_STATE_HOME.

    For a URL it depends only on the URL (without trailing slashes), so that two runs with one URL
    compete for the same lock.
    """
    if not is_remote(logdir):
        return Path(os.path.realpath(logdir))
    url = os.fspath(logdir).rstrip("/")
    name = f"{url.rpartition('/')[2] or 'root'}-{hashlib.sha256(os.fsencode(url)).hexdigest()[:16]}"
    state = os.environ.get("XDG_STATE_HOME", "")
    root = Path(state) if state.startswith("/") else _home() / ".local" / "state"
    return Path(os.path.realpath(root / "procsv" / name))


def _home() -> Path:
    """Returns the user's home directory; UserError if there is none."""
    try:
        return Path.home()
    except RuntimeError:
        raise UserError(
            "the records of a run whose logdir is a URL lie in the home directory, and there is none: set HOME, or "
            "XDG_STATE_HOME to a directory that lasts",
            exit_code=exit_codes.LOGDIR_UNUSABLE,
        ) from None


def _temporary() -> Path:
    """Returns the temporary directory; UserError if none is writable."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        raise UserError(
            "the sockets of a run lie in a temporary directory, and none can be written: set TMPDIR, or XDG_RUNTIME_DIR, to a "
            "directory that can",
            exit_code=exit_codes.LOGDIR_UNUSABLE,
        ) from None


def shorten_path(path: str) -> str:
    """Makes a path in the working directory relative, for people.  Leaves any other as it is."""
    with contextlib.suppress(OSError):  # the working directory was deleted
        if not is_remote(path) and Path(path).is_relative_to(Path.cwd()):
            return os.path.relpath(path)
    return path


def name_logdir(logdir: str, paths: RunPaths) -> str:
    """Returns the logdir as the run records it: a real path, or a URL without trailing slashes."""
    return logdir.rstrip("/") if is_remote(logdir) else str(paths.logdir)


def logdir_hash(logdir: Path) -> str:
    """Returns 16 hex digits for the real path of `logdir`.

    So two spellings of one directory share a run.
    """
    return hashlib.sha256(os.fsencode(os.path.realpath(logdir))).hexdigest()[:16]


def run_name(home: Path, owner: int | None = None) -> str:
    """Returns the id of the runs of user `owner`, by default ours, in `home` (run_id.py).

    If there is no id, because the logdir is a URL or has had no run, it returns a hash of the local
    directory's path.
    """
    return find_id(home, owner) or logdir_hash(home.parent)


def find_paths(logdir: str | os.PathLike[str], *, outlives_login: bool = False) -> RunPaths:
    """Returns the paths of the run in `logdir`, without creating anything."""
    real = local_home(os.fspath(logdir))
    return RunPaths(real, *name_directories(run_name(real / "procsv"), outlives_login=outlives_login))


def make_paths(logdir: str | os.PathLike[str], *, outlives_login: bool = False) -> RunPaths:
    """Returns the paths for a new run in `logdir`; gives it an id if needed.  May raise OSError."""
    if not is_remote(os.fspath(logdir)):
        make_id(local_home(os.fspath(logdir)) / "procsv")
    return find_paths(logdir, outlives_login=outlives_login)


def has_name(paths: RunPaths) -> bool:
    """Whether the logdir's id is still ours, or no id can be written there.

    The id is another one if somebody has deleted and recreated the logdir.
    """
    return run_name(paths.home) == paths.id or not can_write_id(paths.home)


def keep_name(paths: RunPaths) -> None:
    """Writes our id into the logdir again if it has another one or none.  May raise OSError."""
    if not has_name(paths):
        write_id(paths.home, paths.id)


def name_directories(name: str, *, outlives_login: bool = False) -> tuple[Path, Path]:
    """Returns the run directory and the shared-memory directory for `name`.

    The run directory is under XDG_RUNTIME_DIR, which disappears at the user's last logout.  So if
    the run `outlives_login`, the run directory is in the temporary directory.  It is also there if
    XDG_RUNTIME_DIR is missing, relative or not writable.  If /dev/shm is not writable, the
    directory for shared memory is in the run directory.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if not outlives_login and runtime.startswith("/") and Path(runtime).is_dir() and os.access(runtime, os.W_OK):
        run_dir = Path(runtime) / f"procsv-{name}"
    else:
        run_dir = _temporary() / f"procsv-{os.getuid()}-{name}"
    shm_root_ok = SHM_ROOT.is_dir() and os.access(SHM_ROOT, os.W_OK)
    return run_dir, SHM_ROOT / f"procsv-{os.getuid()}-{name}" if shm_root_ok else run_dir / "shm"


def make_private_dir(path: Path) -> None:
    """Creates `path` with mode 0700, or makes it private if it is already a directory of ours.

    UserError if it is a link or another user's: anybody can write to the temporary directory.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        info = path.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
            raise UserError(
                f"{path} exists and is not a directory of yours; remove it, or set XDG_RUNTIME_DIR to a "
                "directory that only you can write",
                exit_code=exit_codes.LOGDIR_UNUSABLE,
            ) from None
        if stat.S_IMODE(info.st_mode) & 0o077:
            path.chmod(0o700)


def check_socket_paths(paths: RunPaths) -> None:
    """Raises UserError for a path that is too long for a Unix socket, before anything starts."""
    longest = max(
        (paths.control_socket, *map(paths.service_socket, SERVICES)),
        key=lambda p: len(os.fsencode(p)),
    )
    size = len(os.fsencode(longest))
    if size > SOCKET_PATH_BYTES_MAX:
        raise UserError(
            f"the socket path {longest} has {size} bytes, and the system takes {SOCKET_PATH_BYTES_MAX}; "
            "set XDG_RUNTIME_DIR (or TMPDIR) to a shorter directory",
            exit_code=exit_codes.LOGDIR_UNUSABLE,
        )
