"""Start of a process: its configuration, in one environment variable, and the argv that people see.

Written by the watchdog, or by a program that starts its watchdog itself; read once by the started process, which
takes the variable out of its environment before anything of the user's runs.
"""

from __future__ import annotations

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

VARIABLE = "PROCSV_START"
TRAINING = "procsv.training"
OBSERVER = "procsv.watchdog.observer"  # the watchdog of a program that procsv has not started, and ends behind it
LATER = "stdin"  # in the variable: the value comes on standard input, once the process is needed
TASK_CHARS = len("evaluator.00")
SAID_BY = {
    "-O": "PYTHONOPTIMIZE",
    "-W": "PYTHONWARNINGS",
}  # options of the interpreter that the environment can give, too

# What becomes of a directory that the program names.  anywhere: nobody has said --logdir, and it becomes the run's; inside: only
# one in the logdir does; mapped: the logdir takes its place.
Naming = Literal["anywhere", "inside", "mapped"]


class Start(msgspec.Struct, frozen=True):
    """What a started process needs to know."""

    task: TaskId
    run: str  # run id
    incarnation: int
    logdir: str  # as the user knows it: a directory's real path, or a URL
    run_dir: str
    shm_dir: str
    root: str = ""  # the directory with the run's own files, where the logdir is one that the program has named
    naming: Naming = "inside"
    names_logdir: bool = False  # --logdir stands in the command line of `procsv launch`
    has_other_args: bool = (
        False  # than the run's last launch, whose results are there: no other directory is a time stamp
    )
    lifeline_fd: int = -1  # end-of-file on it: whoever runs the run is dead
    observes: int = 0  # the pid of a program that has started its watchdog itself, which then only observes it
    chief: TaskId = TRAINER  # whose state the checkpoint service saves; other tasks may have slots of their own
    cluster: dict[str, list[str]] = {}  # of a run of several tasks: their addresses (procsv/base/cluster.py)
    home: str = ""  # in the place of <logdir>/procsv, for a run that shares its logdir with another: it keeps no record
    is_spread: bool = False  # the tasks are on several machines
    is_member: bool = False  # of such a run: the services are on the coordinator's
    target: str = ""
    args: tuple[str, ...] = ()
    settings: LaunchSettings = LaunchSettings()
    standby_fd: int = -1  # a standby's end of its line to the watchdog (fd_channel.py)
    is_awaited: bool = False  # a standby: no trainer runs, and the first is to come from it
    standby_without: tuple[str, ...] = ()  # top-level names that a standby which has started over does not import
    asked_at: float = 0.0  # Unix time of the call of `procsv launch`; 0.0: not known

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
        """Whether system calls reach it; False: it is a URL."""
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
        """The same for a run that has adopted `logdir`."""
        return msgspec.structs.replace(self, logdir=logdir, root=self.root or self.logdir)

    def argv(self) -> list[str]:
        """The command line; in `ps` it shows role, logdir and target."""
        shown = [self.logdir] + ([self.target, *self.program_args] if self.target else [])
        options = safe_path()
        if module_of(self.task) == TRAINING:
            shown.insert(0, self.shown_task)
            options += _interpreter_options()
        return [sys.executable, *options, "-m", module_of(self.task), *shown]

    @property
    def shown_task(self) -> str:
        """The task as `ps` shows it, of one length for all of a run: the standby becomes another (standby.py)."""
        return str(self.task).ljust(TASK_CHARS if self.cluster else 0)

    @property
    def program_args(self) -> tuple[str, ...]:
        """The arguments of the program, as this task gets them."""
        return fill_in(self.args, self.cluster, self.task) if self.cluster else self.args

    @property
    def is_chief(self) -> bool:
        """Whether this is the task whose state is saved."""
        return self.task == self.chief

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        return {**base, VARIABLE: self.text()}

    def text(self) -> str:
        # Not msgspec's encoder: arguments that are not UTF-8 must arrive as they were given.
        return json.dumps(msgspec.to_builtins(self))

    @staticmethod
    def from_text(text: str) -> Start:
        return msgspec.convert(json.loads(text), Start)


class Serve(msgspec.Struct, frozen=True, tag=True):
    """Watchdog -> service that waits on its standard input: this is your run.  Brings the logdir's lock.

    `start`: the text of a Start.
    """

    start: str


SERVE_DECODER = msgspec.msgpack.Decoder(Serve)


def module_of(task: TaskId) -> str:
    """What `python -m` runs for it: a standby is of the kind that it is to become."""
    if task.runs_program or task == STANDBY:
        return TRAINING
    return "procsv.watchdog" if task == WATCHDOG else SERVICES[task].module


def safe_path() -> list[str]:
    """-P: a file of the user's in the working directory must not stand for a library's.

    Not where the working directory is what procsv itself is imported from.  The trainer's bootstrap gives the program
    the path that it would have had.
    """
    is_in_tree = Path(procsv.__file__).resolve().parents[1] == Path.cwd()
    return [] if is_in_tree else ["-P"]


def _interpreter_options() -> list[str]:
    """-O, -X and -W, as this interpreter was given them: the program is run as `python OPTIONS TARGET` would run it.

    What the environment says is passed on with that.
    """
    given: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    found: list[str] = []
    for option, value in zip_longest(given, given[1:], fillvalue=""):
        if option == "-X":
            found += [option, value]
        elif SAID_BY.get(option[:2], "") not in ("", *os.environ):
            found.append(option)
    return found


def take_start(task: TaskId) -> Start:
    """The start value of this process, which runs the module of `task`, taken out of its environment."""
    text = os.environ.pop(VARIABLE, None)
    if text == LATER:
        return _wait_for_start()
    if text is None:
        raise SystemExit(
            f"python -m {module_of(task)} is started by `procsv launch` or by procsv.Supervisor, not by hand"
        )
    start = Start.from_text(text)
    if module_of(start.task) != module_of(task):
        raise ProcsvBug(f"started as {start.task}, but this is {module_of(task)}")
    return start


def _wait_for_start() -> Start:
    """The start value of a service that was started before it is needed, all imports done; its log is opened only now."""
    try:
        received = FdChannel.inherited(os.dup(0), SERVE_DECODER).receive(waits=True)
    except EOFError:
        raise SystemExit(0) from None  # nobody needs it
    assert received is not None, "it was waited for"
    start = Start.from_text(received[0].start)  # the file that came along, the logdir's lock, is ours until we end
    log = open_record(start.paths.log(start.task, start.incarnation), os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, standard in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(fd, standard)
    os.close(log)
    os.close(nothing)
    return start
