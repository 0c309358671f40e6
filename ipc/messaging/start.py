"""Pass a new process its configuration in its environment, and build the argv that people see.

The watchdog writes the configuration into the environment of each process that it starts.  A
program that starts its own watchdog does the same.  The started process reads the configuration
once, and removes it from its environment before any of the user's code runs.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import msgspec

import procsv
from procsv.base.cluster import fill_in
from procsv.base.errors import ProcsvBug
from procsv.base.identity import STANDBY, TRAINER, WATCHDOG, TaskId
from procsv.base.location import is_remote
from procsv.base.run.paths import RunPaths, local_home
from procsv.base.run.records import open_record
from procsv.base.service_table import SERVICES
from procsv.ipc.messaging.fd_channel import FdChannel
from procsv.ipc.messaging.launch_settings import LaunchSettings

VARIABLE = "PROCSV_START"  # the rest of a long text is in PROCSV_START_1 and so on
PIECE_CHARS = 2**16  # in one variable: Linux allows 128 KiB, and the program's arguments alone may be longer
TRAINING = "procsv.training"
OBSERVER = "procsv.watchdog.observer"  # the watchdog of a program that procsv did not start; it ends after the program
LATER = "stdin"  # value of the variable: the Start comes on standard input, once the process is needed
TASK_CHARS = len("evaluator.00")
# Options of the interpreter that the environment can set, too, and the variables that set them.
SAID_BY = {"-O": "PYTHONOPTIMIZE", "-W": "PYTHONWARNINGS"}

# What to do with a directory that the program names.  anywhere: there was no --logdir, so the directory becomes the
# run's logdir.  inside: the directory becomes the run's logdir only if it is in the run's own directory.  mapped: the
# program gets the run's logdir instead.
Naming = Literal["anywhere", "inside", "mapped"]


class Start(msgspec.Struct, frozen=True):
    """The configuration of a started process."""

    task: TaskId
    run: str  # run id
    incarnation: int
    logdir: str  # as the user knows it: a directory's real path, or a URL
    run_dir: str
    shm_dir: str
    root: str = ""  # the directory with the run's own files, if the program has named the logdir
    naming: Naming = "inside"
    names_logdir: bool = False  # the command line of `procsv launch` contains --logdir
    # The run has results, and its last launch had other arguments.  So if the program now names another directory, it
    # means another run.  With the same arguments, another directory only means that its name contains a time stamp.
    has_other_args: bool = False
    lifeline_fd: int = -1  # end-of-file on it means that the watchdog is dead
    observes: int = 0  # the pid of a program that has started its own watchdog, which only observes it; 0: none
    chief: TaskId = TRAINER  # the checkpoint service saves this task's state; other tasks may have slots, too
    cluster: dict[str, list[str]] = {}  # the addresses of a run's tasks, if it has several (procsv/base/cluster.py)
    # Replaces <logdir>/procsv for a member, and for a run without a Saver in another run's logdir.  "": not replaced.
    home: str = ""
    is_spread: bool = False  # the tasks are on several machines
    is_member: bool = False  # this is a member of such a run; the checkpoint service is on the coordinator's machine
    target: str = ""
    args: tuple[str, ...] = ()
    settings: LaunchSettings = LaunchSettings()
    standby_fd: int = -1  # a standby's end of its channel to the watchdog (fd_channel.py)
    is_awaited: bool = False  # for a standby: no program runs yet, and the first program waits for this standby
    # Packages that the standby must not import.  Their import failed, or imported the program's own modules, and the
    # standby has started over in a fresh interpreter.
    standby_without: tuple[str, ...] = ()
    asked_at: float = 0.0  # Unix time of the call of `procsv launch`; 0.0 if unknown

    @property
    def paths(self) -> RunPaths:
        home = Path(self.home) if self.home else None
        return RunPaths(
            logdir=local_home(self.root or self.logdir),
            run_dir=Path(self.run_dir),
            shm_dir=Path(self.shm_dir),
            own_home=home,
            is_member=self.is_member,
        )

    @property
    def has_local_logdir(self) -> bool:
        """Whether system calls reach the logdir; False if it is a URL."""
        return not is_remote(self.logdir)

    @property
    def checkpoint_dir(self) -> Path:
        """The directory on this machine that stands for the logdir."""
        return local_home(self.logdir)

    def may_adopt(self, directory: Path) -> bool:
        """Whether `directory`, a real path that the program has named, may become the logdir."""
        if self.naming == "inside":
            return self.has_local_logdir and directory.is_relative_to(local_home(self.root or self.logdir))
        return self.naming == "anywhere"

    def with_logdir(self, logdir: str) -> Start:
        """Returns the Start of the same run after it has adopted `logdir`."""
        return msgspec.structs.replace(self, logdir=logdir, root=self.root or self.logdir)

    def argv(self) -> list[str]:
        """Returns the command line, which shows role, logdir and target in `ps`."""
        shown = [self.logdir] + ([self.target, *self.program_args] if self.target else [])
        options = safe_path()
        if module_of(self.task) == TRAINING:
            shown.insert(0, self.shown_task)
            options += _interpreter_options()
        return [sys.executable, *options, "-m", module_of(self.task), *shown]

    @property
    def shown_task(self) -> str:
        """The task as `ps` shows it.

        It is padded, so that a standby can overwrite its own argv in place (standby.py).
        """
        return str(self.task).ljust(TASK_CHARS if self.cluster else 0)

    @property
    def program_args(self) -> tuple[str, ...]:
        """The program's arguments for this task."""
        return fill_in(self.args, self.cluster, self.task) if self.cluster else self.args

    @property
    def is_chief(self) -> bool:
        """Whether this task's state is saved."""
        return self.task == self.chief

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        text = self.text()
        pieces = [text[at : at + PIECE_CHARS] for at in range(0, len(text), PIECE_CHARS)]
        return {**base, **{_variable(number): piece for number, piece in enumerate(pieces)}}

    def text(self) -> str:
        # json, because msgspec's encoder cannot carry arguments that are not UTF-8 unchanged.
        return json.dumps(msgspec.to_builtins(self))

    @staticmethod
    def from_text(text: str) -> Start:
        return msgspec.convert(json.loads(text), Start)


class Serve(msgspec.Struct, frozen=True, tag=True):
    """Watchdog -> a service started in advance: serve this run.  Carries the logdir's lock.

    `start`: the text of a Start.
    """

    start: str


SERVE_DECODER = msgspec.msgpack.Decoder(Serve)


def module_of(task: TaskId) -> str:
    """Returns the module that `python -m` runs for a task.

    A standby runs the trainer's module.
    """
    if task.runs_program or task == STANDBY:
        return TRAINING
    return "procsv.watchdog" if task == WATCHDOG else SERVICES[task].module


def safe_path() -> list[str]:
    """Returns [-P], so that a user's file in the working directory cannot shadow a library.

    Returns no option if procsv itself is imported from the working directory.  With -P, the
    trainer's bootstrap gives the program the path that it would have had without -P.
    """
    with contextlib.suppress(FileNotFoundError):  # the working directory was deleted
        if Path(procsv.__file__).resolve().parents[1] == Path.cwd():
            return []
    return ["-P"]


def _interpreter_options() -> list[str]:
    """Returns this interpreter's options -O, -X and -W.

    With them the program runs as with `python OPTIONS TARGET`.  Leaves out options that come from
    the environment, because children inherit the environment.
    """
    given: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    found: list[str] = []
    for option, value in zip_longest(given, given[1:], fillvalue=""):
        if option == "-X":
            found += [option, value]
        elif SAID_BY.get(option[:2], "") not in ("", *os.environ):
            found.append(option)
    return found


def _variable(number: int) -> str:
    return f"{VARIABLE}_{number}" if number else VARIABLE


def take_start(task: TaskId) -> Start:
    """Takes this process's Start out of its environment.

    `task`: any task whose module this process runs.  SystemExit if there is no Start, because a
    user has started the module by hand.
    """
    text = os.environ.pop(VARIABLE, None)
    if text == LATER:
        return _wait_for_start()
    if text is None:
        raise SystemExit(
            f"python -m {module_of(task)} is started by `procsv launch` or by procsv.Supervisor, not by hand"
        )
    for number in itertools.count(1):
        if (piece := os.environ.pop(_variable(number), None)) is None:
            break
        text += piece
    start = Start.from_text(text)
    if module_of(start.task) != module_of(task):
        raise ProcsvBug(f"started as {start.task}, but this is {module_of(task)}")
    return start


def _wait_for_start() -> Start:
    """Waits on standard input for the Start of this service, which was started in advance.

    The service has done its imports before.  It opens its log only when the Start arrives, because
    only the Start names the log.
    """
    try:
        received = FdChannel.inherited(os.dup(0), SERVE_DECODER).receive(waits=True)
    except EOFError:
        raise SystemExit(0) from None  # the service is not needed
    assert received is not None, "it was waited for"
    start = Start.from_text(received[0].start)  # the attached file, the logdir's lock, stays open until we end
    log = open_record(start.paths.log(start.task, start.incarnation), os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, standard in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(fd, standard)
    os.close(log)
    os.close(nothing)
    return start
