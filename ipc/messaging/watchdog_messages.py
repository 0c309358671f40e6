"""Define the messages between the watchdog and the services, the programs and the command line.

They are pure data, bodies for messages.py.
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
    """Says that everything that could be saved has been saved.

    `error`: why the newest state could not be made durable; "" if it could.
    """

    contract = Contract(SERVICE, WATCHDOG | PROGRAM)

    step: int  # -1: nothing durable
    error: str


class TrainerExited(Message, frozen=True):
    """Says that this incarnation of a task is dead and reaped.

    The service then saves the task's newest READY slot.  It does so immediately if `clean`,
    otherwise once the next trainer has restored that state, but after a second at the latest.  It
    answers once all states of the task are saved or given up.
    """

    contract = Contract(WATCHDOG, STATE_SERVICE, (FlushDone,))

    incarnation: int
    clean: bool  # the task reported that it was done, or was asked to stop
    avoid_step: int = -1  # attempts that resumed from this step kept crashing, so give the next one an older state
    task: TaskId = TRAINER


class Finish(Message, frozen=True):
    """Says that the run is over: save unsaved states, tidy up, answer, exit 0."""

    contract = Contract(WATCHDOG | PROGRAM, SERVICE, (FlushDone,))


# -- trainer -> watchdog -----------------------------------------------------------------------------------
class FirstStepDone(Message, frozen=True):
    """Says that the first step after the start, or after a lost session, has ended.

    After a start, the journal then has the event `ready`.  `ended_s` is the monotonic time at which the step
    ended, comparable within one boot.
    """

    contract = Contract(PROGRAM, WATCHDOG)

    restored_step: int  # the step from which training resumed
    source: Source  # where the state came from
    origin: str  # the slot or checkpoint of this state; "" if there is none, or the program restored its own
    step: int  # the step that has ended
    ended_s: float
    steps_total: int = -1  # the step at which the program will end; -1 if unknown
    habit: SaveHabit = STEPS


class Loaded(Message, frozen=True):
    """Says that the program has recorded its imports so far (paths.loaded).

    The program sends it at its first contact with the run, and again after its first step.  From
    then on the watchdog can make a standby; a standby that already waits imports the rest.
    """

    contract = Contract(PROGRAM, WATCHDOG)


class TrainsInStep(Message, frozen=True):
    """Says that the program's strategy takes each step in all tasks together.  So no task can go on
    alone.
    """

    contract = Contract(PROGRAM, WATCHDOG)


class Note(Message, frozen=True):
    """Carries a journal entry that only the program's process can make."""

    contract = Contract(PROGRAM, WATCHDOG)

    entry: AnyEntry


class LogdirAdopted(Message, frozen=True):
    """Says whether the program's directory is now the run's logdir.

    `error`: why it cannot be; "" if it is.
    """

    contract = Contract(WATCHDOG, PROGRAM)

    error: str


class AdoptLogdir(Message, frozen=True):
    """Asks to make `logdir`, a directory that the program has named, the run's logdir."""

    contract = Contract(PROGRAM, WATCHDOG, (LogdirAdopted,))

    logdir: str  # its real path


# -- watchdog -> trainer -----------------------------------------------------------------------------------
class StopTraining(Message, frozen=True):
    """Asks to stop at the next boundary, save and exit.

    A SIGTERM has the same meaning.  A program without a session has no boundary and nothing to
    save.  If the run ends, such a program is interrupted as by Ctrl-C.
    """

    contract = Contract(WATCHDOG, PROGRAM)

    grace_s: float
    reason: Reason
    ends_run: bool = False  # if False, the program is started again


class ServiceLost(Message, frozen=True):
    """Says that this service has died too often and will not be started again.

    The program immediately fails everything that waits for the service.
    """

    contract = Contract(WATCHDOG, PROGRAM)

    service: TaskId
    why: str


class CopyKept(Message, frozen=True):
    """Says that another machine has a complete copy of the chief's snapshot `sequence`."""

    contract = Contract(WATCHDOG, PROGRAM)

    sequence: int


class Inject(Message, frozen=True):
    """Orders a fault from the user's fault plan.

    raise, exit and hang happen at the next moment between two steps, or between two messages; for
    exit, `number` is the code.  fill and drop last `number` seconds: during fill, writes to the
    disk fail; during drop, incoming messages are dropped.
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
    """Asks for the status, which the watchdog answers immediately, whatever the trainer does."""

    contract = Contract(COMMAND_LINE, WATCHDOG, (Status,))


class StopRun(Message, frozen=True):
    """Asks to end the run: exit 75 after a durable checkpoint."""

    contract = Contract(COMMAND_LINE, WATCHDOG)

    now: bool


class CannotRestart(Message, frozen=True):
    """Refuses a restart, because procsv did not start the program."""

    contract = Contract(WATCHDOG, COMMAND_LINE, is_reliable=False)


class RestartTrainer(Message, frozen=True):
    """Asks to save, end the trainer and start it again, without counting it as a failure."""

    contract = Contract(COMMAND_LINE, WATCHDOG, (CannotRestart,))
