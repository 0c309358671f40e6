"""The invariants I1 to I12, checked over the history of a simulated world.  Each returns what is wrong, or "" if nothing is.

Called by run.py: with every fact as it is noted, and (`after_event`) after every event.  They keep an account of their own
and never ask the code under test whether it was right.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from procsv.base import identity
from procsv.base.identity import CHECKPOINT, STANDBY, TRAINER, WATCHDOG, TaskId
from procsv.base.outcome import Exit
from procsv.ipc.messaging.messages import Durable, FirstStepDone
from procsv.watchdog.core.events import Ended, RecycleAsked, Said, Ticked
from tests.simulation.model import history
from tests.simulation.model.checkpoints import REPLACED, STAGING, files_of, is_safe, is_whole, saved_after
from tests.simulation.model.program import value_at
from tests.simulation.model.stream_store import TORN_RECORD, VERSION
from tests.simulation.model.trainer import Trainer
from tests.simulation.model.world import STATUS_S_MAX, Violation, World

READY_S_MAX = 60.0  # beyond what the program itself takes, once nothing disturbs any more
SWEEP_S = 30.0  # a save or a start after which nothing of a bad disk's leavings may be there
FAILURES_SAME_MAX, FAILURES_EARLY_MAX = 3, 2
PERMANENT = (78, 126, 127)
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP)


@dataclass(slots=True)
class Budget:
    """The failures of one launch, counted anew from what its watchdog was told."""

    failures: int = 0
    early: int = 0
    same: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    durable_step: int = -1
    was_ready: bool = False
    has_gone_back: bool = False  # before a suspect state
    last: Ended | None = None


@dataclass(slots=True)
class Account:
    """What the invariants remember."""

    best: Durable | None = None  # the newest acknowledged checkpoint
    acknowledged: dict[str, int] = field(default_factory=dict)  # path -> step
    restored_steps: set[int] = field(default_factory=set)  # of checkpoints that a trainer came from
    suspected: int = -1  # a step that the next trainer need not resume from
    spoilt: set[str] = field(default_factory=set)  # paths that a fault has damaged
    passed_over: set[str] = field(default_factory=set)  # paths of states that were suspected, and are not gone on from
    disk_version: int = -1
    records: dict[str, tuple[str, int]] = field(default_factory=dict)  # record -> file and place
    checked: dict[str, int] = field(default_factory=dict)  # file -> records scanned at
    last_in: dict[str, tuple[int, int]] = field(default_factory=dict)  # file -> number and step of the last record
    died: dict[tuple[TaskId, int], history.Died] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    newest_heard: dict[tuple[TaskId, TaskId], int] = field(default_factory=dict)  # (server, task) -> incarnation
    newest_trainer: int = 0


def i1_one_writer(world: World, account: Account, fact: history.Fact) -> str:
    """At most one trainer tree writes to a logdir: none is asked for, born or writing while another one holds the lock."""
    match fact:
        case history.SpawnAsked(identity.TRAINER) if world.writer_lock_is_held():
            return "a trainer is asked for while an older one's tree is alive"
        case history.Born(identity.TRAINER) if sum(p.task == TRAINER for p in world.processes.values()) > 1:
            return "two trainers are alive"
        case history.Wrote(pid) if pid not in world.processes:
            return "a dead trainer writes"
    return ""


def i2_acknowledged_can_be_restored(world: World, account: Account, fact: history.Fact) -> str:
    """Every acknowledged checkpoint can be restored: whole on the disk, and still so if the power failed now."""
    if isinstance(fact, history.Acknowledged):
        best, news = account.best, fact.news
        account.acknowledged.setdefault(news.path, news.step)
        if best is None or news.sequence > best.sequence:
            account.best, account.disk_version = news, -1
            account.acknowledged[news.path] = news.step
            account.spoilt.discard(news.path)
            account.passed_over.discard(news.path)
    return ""


def i2_after_event(world: World, account: Account) -> str:
    """The newest acknowledged checkpoint stays whole, whatever the disk went through since."""
    if account.disk_version == world.disk.version or account.best is None:
        return ""
    account.disk_version = world.disk.version
    path = account.best.path
    if path in account.spoilt:
        return ""
    newer = saved_after(world.disk.files, account.best.sequence)  # on disk, and not said yet: its turn has come
    if not any(is_whole(world.disk.files, p) for p in (path, *newer)):
        return f"{path} was acknowledged, and cannot be restored"
    if not any(is_safe(world.disk.durable, p) for p in (path, *newer)):
        return f"{path} was acknowledged, and would not survive a power loss"
    return ""


def i3_resumes_from_the_newest(world: World, account: Account, fact: history.Fact) -> str:
    """The step resumed from is at least the last acknowledged one that is whole and could be read, and nothing incomplete is
    chosen.
    """
    if isinstance(fact, history.Journaled) and fact.event == "state_suspected":
        account.suspected = fact.fields["step"]
    if not isinstance(fact, history.Restored):
        return ""
    if fact.source == "checkpoint":
        account.restored_steps.add(fact.step)
    good = [
        step
        for path, step in account.acknowledged.items()
        if path not in account.spoilt
        and path not in account.passed_over
        and is_whole(world.disk.files, path)
        and world.disk.unread.isdisjoint(files_of(path))
    ]
    newest = max(good, default=-1)
    if account.suspected >= 0:  # what resumed from it crashed again and again: the one before will do
        newest = max((step for step in good if step < account.suspected), default=-1)
        if fact.step < account.suspected:  # from now on the newest state is one that comes after this
            account.passed_over |= {path for path, step in account.acknowledged.items() if step > fact.step}
        account.suspected = -1
    if fact.step < newest:
        return f"resumed from step {fact.step}, although step {newest} was acknowledged"
    if fact.source == "fresh" and account.acknowledged:
        return "began again from step 0, although there were checkpoints"
    if fact.value != value_at(fact.step):
        return f"resumed from a state that is not that of step {fact.step}"
    return ""


def i4_event_files(world: World, account: Account, fact: history.Fact) -> str:
    """Event files are readable, no step goes backwards but behind a START mark, and no record is there twice."""
    if not isinstance(fact, history.Appended):
        return ""
    records = world.events.files[fact.file]
    begin = min(account.checked.get(fact.file, 0), len(records))
    for place in range(begin, len(records)):
        wrong = _wrong_record(account, fact.file, place, records[place])
        if wrong:
            return f"{fact.file}: {wrong}"
    account.checked[fact.file] = len(records)
    return ""


def _wrong_record(account: Account, file: str, place: int, record: bytes) -> str:
    if place == 0:
        return "" if record == VERSION else "does not begin as an event file does"
    if record in (TORN_RECORD, VERSION):
        return f"record {place} is {record!r}, with others behind it"
    text = record.decode()
    _, number, what, step = text.split(":")
    if account.records.setdefault(text, (file, place)) != (file, place):
        return f"{text} is there twice"
    if place == 1:
        account.last_in[file] = (int(number), int(step))
        return "" if what == "start" else "does not begin with a START mark"
    before, step_before = account.last_in[file]
    account.last_in[file] = (int(number), int(step))
    if int(number) != before + 1:
        return f"record {number} follows {before}"
    return f"step {step} follows {step_before}" if int(step) < step_before else ""


def i5_nothing_is_left(world: World, account: Account, fact: history.Fact) -> str:
    """After the end: no process, shared memory, socket, temporary file or lock is left."""
    if not isinstance(fact, history.LaunchEnded) or fact.exit_code is None:
        return ""
    alive = [p for p in world.processes.values() if not (p.is_orphan and p.is_frozen)]  # it ends when it goes on
    left = [f"{process.task} {process.incarnation}" for process in alive]
    left += [f"socket {path}" for path in world.network.servers]
    left += [f"note {writer}" for writer in world.events.notes]
    if not fact.keep_memory:
        left += [f"shared memory {path}" for path in [*world.memory.slots, *world.memory.staged]]
    served = next((died for key, died in reversed(account.died.items()) if key[0] == CHECKPOINT), None)
    is_swept = not world.disk.trouble and world.clock.now_s > world.disk_bad_until_s + SWEEP_S  # with the next save
    if is_swept and (served is None or served.by == "itself"):  # else nobody came to sweep
        left += [path for path in world.disk.files if path.startswith((STAGING, REPLACED)) or path.endswith(".new")]
    return f"left behind: {', '.join(left)}" if left else ""


def i6_true_cause(world: World, account: Account, fact: history.Fact) -> str:
    """The recorded cause of a death is the true one, or "unknown"."""
    if isinstance(fact, history.Died):
        account.died[fact.task, fact.incarnation] = fact
    if not isinstance(fact, history.Journaled) or fact.event != "exited":
        return ""
    fields = fact.fields  # a standby that dies in its promotion was a trainer already
    died = next(died for died in reversed(account.died.values()) if died.pid == fields["pid"])
    if (fields["code"], fields["signal"]) != (died.exit.code, died.exit.signal_name):
        return f"{died.exit} is in the journal as {fields}"
    expected = _causes(world, died)
    cause = fields["cause"]
    return "" if cause in {*expected, "unknown"} else f"{fact.task} died by {died.by} with {died.exit}: {fields}"


def _causes(world: World, died: history.Died) -> set[str]:
    """What may be said of a death."""
    is_stopping = world.watchdog is not None and (world.watchdog.is_stop_asked or _has_failed(world))
    is_stopping = is_stopping or (world.watchdog is not None and died.pid in world.watchdog.preempted)
    is_stopping = is_stopping or (died.task != TRAINER and _is_ending(world))
    stopped = {"stopped"} if is_stopping else set()
    exit = died.exit
    if exit.signal == signal.SIGKILL and _is_of_broken_gang(world, died.task):
        return {"lost-peer", "stopped"} if died.by == "watchdog" else {"lost-peer", "killed"}
    if died.was_stuck and exit.signal in (signal.SIGKILL, signal.SIGABRT):
        return {"hang", "stopped", "killed", "crashed"}  # whoever was first: it hung
    if died.by == "watchdog":
        return {"stopped"} if exit.signal == signal.SIGKILL else set()
    if exit.signal in CRASHES:
        return {"crashed"}
    if exit.signal is not None:
        # Killed from outside at the moment at which the watchdog would have: nobody can tell who was first.
        return {"killed"} | (stopped if exit.signal == signal.SIGKILL else set())
    if died.by == "program":
        return {"exception", "exit-code"} | (stopped if exit.code == 75 else set())
    if exit.code == 0:
        return {"completed", *stopped}
    return {"exit-code", *stopped}


def _is_ending(world: World) -> bool:
    """Whether tasks beside the trainer are told to stop."""
    core = world.watchdog.core if world.watchdog is not None else None
    return core is None or core.is_ending


def _is_of_broken_gang(world: World, task: TaskId) -> bool:
    core = world.watchdog.core if world.watchdog is not None else None
    return core is not None and core.gang.breaks(task)


def _has_failed(world: World) -> bool:
    core = world.watchdog.core if world.watchdog is not None else None
    return core is not None and bool(core.failure)


def i7_ready_in_time(world: World, account: Account, fact: history.Fact) -> str:
    """READY comes within the bound, counted from the last disturbance."""
    if not isinstance(fact, history.CoreActed) or not isinstance(fact.event, Ticked):
        return ""
    now_s, program = world.clock.now_s, world.program
    limit_s = READY_S_MAX + program.import_s + program.restore_s + program.compile_s + program.step_s
    for process in world.processes.values():
        if not isinstance(process, Trainer) or process.is_ready or process.is_orphan or process.step >= program.steps:
            continue
        if now_s - max(process.born_s, world.calm_from_s) > limit_s:
            return f"trainer {process.incarnation} is not ready after {now_s - process.born_s:.0f} s"
    return ""


def i8_gives_up_at_the_budget(world: World, account: Account, fact: history.Fact) -> str:
    """The run is given up exactly at the budget: not a failure earlier, and not a restart later."""
    match fact:
        case history.Born(identity.WATCHDOG):
            account.budget = Budget()
        case history.CoreActed(RecycleAsked(by_hand=True)):
            account.budget.failures = account.budget.early = 0
            account.budget.same.clear()
            account.budget.has_gone_back = False
        case history.CoreActed(Ended(identity.TRAINER, incarnation)) if _is_free(account.died[TRAINER, incarnation]):
            account.budget.last = None
        case history.CoreActed(event):
            _count(account.budget, event)
        case history.Journaled("state_suspected"):
            account.budget.has_gone_back = True
        case history.Journaled("restarting") if why := _spent(world, account.budget):
            return f"started again, although {why}"
        case history.Journaled("gave_up", _, _, fields) if "no newly durable step" in fields["why"]:
            if account.budget.failures != world.settings.launch.max_failures:
                return f"gave up after {account.budget.failures} failures: {fields['why']}"
        case history.Journaled("gave_up", _, _, fields) if fields["why"].startswith("deterministic"):
            if max(account.budget.same.values(), default=0) != FAILURES_SAME_MAX:
                return f"gave up as deterministic: {fields['why']}, counted {account.budget.same}"
    return ""


def _is_free(died: history.Died) -> bool:
    """A death that was our own order, and costs nothing: but for a hang, which is the program's failure."""
    return died.by == "watchdog" and not died.was_stuck


def _count(budget: Budget, event: Any) -> None:
    match event:
        case Said(identity.TRAINER, _, FirstStepDone() as recovered):
            if not budget.was_ready or (recovered.restored_step < budget.durable_step and not budget.has_gone_back):
                budget.durable_step = recovered.restored_step
            budget.was_ready = True
        case Said(identity.CHECKPOINT, _, Durable() as news) if news.step > budget.durable_step:
            budget.durable_step, budget.failures, budget.has_gone_back = news.step, 0, False
            budget.same = Counter({key: count for key, count in budget.same.items() if key[2] >= news.step})
        case Ended(identity.TRAINER, _, exit) if exit.code not in (0, 75):
            budget.failures, budget.last = budget.failures + 1, event
            words = event.words
            if exit.code is not None and words is not None and words.type:
                budget.same[words.type, words.message, words.step if words.step is not None else -1] += 1
            if exit.code is not None and not budget.was_ready:
                budget.early += 1
        case Ended(identity.TRAINER):
            budget.last = event


def _spent(world: World, budget: Budget) -> str:
    """Why no trainer may be started again; "" if one may."""
    if budget.last is None or budget.last.exit.code in (0, 75):
        return ""
    if budget.failures >= world.settings.launch.max_failures:
        return f"there were {budget.failures} failures in a row"
    if max(budget.same.values(), default=0) >= FAILURES_SAME_MAX:
        return "it fails the same way every time"
    if budget.early >= FAILURES_EARLY_MAX:
        return f"it has failed {budget.early} times before its first step"
    return "its exit says that it would not help" if budget.last.exit.code in PERMANENT else ""


def i9_others_live_on(world: World, account: Account, fact: history.Fact) -> str:
    """A fault in one process leaves the others' pids alone: who dies was hit, told to end, orphaned, or of a gang that is broken."""
    if not isinstance(fact, history.Died) or fact.by in ("outside", "power", "program"):
        return ""
    watchdog = world.watchdog
    core = watchdog.core if watchdog is not None else None
    is_ending = fact.was_orphan or (core is not None and (core.is_ending or core.gang.breaks(fact.task)))
    is_preempted = watchdog is not None and fact.pid in watchdog.preempted
    if fact.task == TRAINER and fact.by == "watchdog":
        is_right = is_ending or is_preempted or fact.was_stuck
        return "" if is_right else "the watchdog has killed a trainer that was well"
    if fact.task == TRAINER and fact.exit == Exit(75, None):
        return "" if is_ending or is_preempted else "a trainer stopped, although nobody had asked"
    if fact.task in (TRAINER, WATCHDOG, STANDBY):
        return ""
    is_right = is_ending or (fact.by == "watchdog" and fact.was_stuck)
    return "" if is_right else f"the {fact.task} service ended ({fact.exit}, by {fact.by}) in the middle of a run"


def i10_status_answers(world: World, account: Account, fact: history.Fact) -> str:
    """`procsv status` answers within 1 s throughout, and says what is so."""
    if not isinstance(fact, history.Asked):
        return ""
    if fact.answer is None or fact.seconds > STATUS_S_MAX:
        return f"no answer within {STATUS_S_MAX} s"
    pids = {row["role"]: row["pid"] for row in fact.answer["processes"]}
    trainer = world.find(TRAINER)
    if (
        trainer is not None
        and not trainer.is_orphan
        and not trainer.is_frozen
        and trainer.born_s < world.clock.now_s - STATUS_S_MAX
    ):
        told = pids[str(TRAINER)]
        return "" if told == trainer.pid else f"says that the trainer is {told}, not {trainer.pid}"
    if fact.answer["durable_step"] not in {-1, *account.acknowledged.values(), *account.restored_steps}:
        return f"says that step {fact.answer['durable_step']} is durable"
    return ""


def i11_bit_identical(world: World, account: Account, fact: history.Fact) -> str:
    """A deterministic program ends with the very state that a run without faults ends with, its records written."""
    if not isinstance(fact, history.Finished):
        return ""
    if fact.step != world.program.steps or fact.value != value_at(fact.step):
        return f"ended at step {fact.step} with a state that is not that step's"
    return ""


def i12_the_dead_are_not_heard(world: World, account: Account, fact: history.Fact) -> str:
    """Nothing that an older incarnation says takes effect."""
    match fact:
        case history.Born(task, incarnation):
            account.newest_heard = {key: n for key, n in account.newest_heard.items() if key[0] != task}
            if task == TRAINER:
                account.newest_trainer = incarnation
        case history.Received(server, task, incarnation, body):
            newest = account.newest_heard.get((server, task), 0)
            if incarnation < newest:
                return f"{server} has heard {body} of {task} {incarnation}, after {newest}"
            account.newest_heard[server, task] = incarnation
        case history.CoreActed(Said(identity.TRAINER, incarnation) as said, actions):
            if incarnation != account.newest_trainer and actions:
                return f"trainer {incarnation}'s {type(said.body).__name__} led to {actions}"
    return ""


Invariant = Callable[[World, Account, history.Fact], str]
INVARIANTS: tuple[Invariant, ...] = (
    i1_one_writer,
    i2_acknowledged_can_be_restored,
    i3_resumes_from_the_newest,
    i4_event_files,
    i5_nothing_is_left,
    i6_true_cause,
    i7_ready_in_time,
    i8_gives_up_at_the_budget,
    i9_others_live_on,
    i10_status_answers,
    i11_bit_identical,
    i12_the_dead_are_not_heard,
)


class Checker:
    """All invariants over one world; the first violation is raised."""

    def __init__(self, world: World) -> None:
        self._world, self.account = world, Account()
        world.watchers.append(self.check)

    def check(self, fact: history.Fact) -> None:
        for invariant in INVARIANTS:
            self._fail(invariant.__name__, invariant(self._world, self.account, fact))

    def after_event(self) -> None:
        self._fail("i2_acknowledged_can_be_restored", i2_after_event(self._world, self.account))

    @staticmethod
    def _fail(name: str, why: str) -> None:
        if why:
            raise Violation(f"{name}: {why}")
