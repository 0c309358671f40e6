"""Messages between the watchdog and the other processes of its run: the services, the programs, the command line.

Pure data, bodies of messages.py.
"""

from __future__ import annotations

from typing import Literal

from procsv.base.identity import TRAINER, TaskId
from procsv.base.journal.entries import AnyEntry
from procsv.base.outcome import STEPS, SaveHabit, Source
from procsv.base.run.manifest import Reason
from procsv.ipc.messaging.message import COMMAND_LINE, PROGRAM, SERVICE, STATE_SERVICE, WATCHDOG, Contract, Message


# -- watchdog -> services -------------------------------------------------------------------------------------
class FlushDone(Message, frozen=True):
    """Says that what could be saved of the trainer is saved.

    `error` is not "" if the newest state could not be made durable.
    """

    contract = Contract(SERVICE, WATCHDOG | PROGRAM)

    step: int  # -1: nothing durable
    error: str


class TrainerExited(Message, frozen=True):
    """Says that this incarnation of a task is dead and reaped.

    Its newest READY slot is saved: at once if `clean`, else once the next trainer has it, and after a second at the
    latest.  Answered when nothing of it is left unsaved.
    """

    contract = Contract(WATCHDOG, STATE_SERVICE, (FlushDone,))

    incarnation: int
    clean: bool  # it said it was done, or was asked to stop
    avoid_step: int = -1  # what resumed from this step crashed again and again: the next one is to get an older state
    task: TaskId = TRAINER


class Finish(Message, frozen=True):
    """Says that the run is over: save what is unsaved, tidy up, answer, exit 0."""

    contract = Contract(WATCHDOG | PROGRAM, SERVICE, (FlushDone,))


# -- trainer -> watchdog -----------------------------------------------------------------------------------
class FirstStepDone(Message, frozen=True):
    """Says that the first step after the start has ended (READY).

    `ended_s` is the monotonic time of that end, comparable within one boot.
    """

    contract = Contract(PROGRAM, WATCHDOG)

    restored_step: int
    source: Source
    origin: str
    step: int
    ended_s: float
    steps_total: int = -1  # at which the program will end, where it has told
    habit: SaveHabit = STEPS


class Loaded(Message, frozen=True):
    """Says that the program has written down what it has imported by now (paths.loaded).

    Said when it asks for the run, and when it trains.  A standby can be made from now on; one that waits imports the rest.
    """

    contract = Contract(PROGRAM, WATCHDOG)


class TrainsInStep(Message, frozen=True):
    """Says that the program has made a strategy whose tasks take each step together: none of them can go on without the others."""

    contract = Contract(PROGRAM, WATCHDOG)


class Note(Message, frozen=True):
    """Carries a fact for the journal that only the program's process knows."""

    contract = Contract(PROGRAM, WATCHDOG)

    entry: AnyEntry


class LogdirAdopted(Message, frozen=True):
    """Says whether the program's directory is the run's logdir now: `error` is not "" if it cannot be."""

    contract = Contract(WATCHDOG, PROGRAM)

    error: str


class AdoptLogdir(Message, frozen=True):
    """Asks to make `logdir`, which the program has named, the run's logdir, where nobody has said --logdir."""

    contract = Contract(PROGRAM, WATCHDOG, (LogdirAdopted,))

    logdir: str  # its real path


# -- watchdog -> trainer -----------------------------------------------------------------------------------
class StopTraining(Message, frozen=True):
    """Asks to stop at the next boundary, save and exit.

    A SIGTERM says the same.  A program without a session has no boundary and nothing to save: where the run ends, it is
    interrupted as by Ctrl-C.
    """

    contract = Contract(WATCHDOG, PROGRAM)

    grace_s: float
    reason: Reason
    ends_run: bool = False  # else the program is started again


class ServiceLost(Message, frozen=True):
    """Says that this service has died too often and will not be started again.

    Whoever waits for it is told at once.
    """

    contract = Contract(WATCHDOG, PROGRAM)

    service: TaskId
    why: str


class CopyKept(Message, frozen=True):
    """Says that another machine has a copy of the chief's snapshot `sequence`, whole."""

    contract = Contract(WATCHDOG, PROGRAM)

    sequence: int


class Inject(Message, frozen=True):
    """Orders a fault, because a plan of the user's says so.

    raise, exit (`number`: the code) and hang befall the next moment between two steps, or between two messages.  fill and
    drop last for `number` seconds: writing to the disk fails, messages that come in are dropped.
    """

    contract = Contract(WATCHDOG, PROGRAM | SERVICE)

    action: Literal["raise", "exit", "hang", "fill", "drop"]
    number: float


# -- command line -> watchdog ------------------------------------------------------------------------------
class Status(Message, frozen=True):
    """Carries the JSON object that `procsv status --json` prints."""

    contract = Contract(WATCHDOG, COMMAND_LINE, is_reliable=False)

    json: bytes


class StatusRequest(Message, frozen=True):
    """Asks for the status, which is answered at once, whatever the trainer does."""

    contract = Contract(COMMAND_LINE, WATCHDOG, (Status,))


class StopRun(Message, frozen=True):
    """Asks to end the run: exit 75 after a durable checkpoint."""

    contract = Contract(COMMAND_LINE, WATCHDOG)

    now: bool


class CannotRestart(Message, frozen=True):
    """Refuses a restart: the program was started by somebody else."""

    contract = Contract(WATCHDOG, COMMAND_LINE, is_reliable=False)


class RestartTrainer(Message, frozen=True):
    """Asks to save, end the trainer and start it again, free of charge."""

    contract = Contract(COMMAND_LINE, WATCHDOG, (CannotRestart,))
