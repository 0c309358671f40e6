"""The invariants I1 to I12, checked over the history of a simulated world. Each returns what is
wrong, or "".

run.py calls them with every fact as it is noted, and (`after_event`) after every event. They keep
their own account and never ask the code under test whether it was right. I8 is in budget.py;
group/invariants.py has the invariants of several tasks.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import get_args

from procsv.base.identity import CHECKPOINT, STANDBY, TRAINER, WATCHDOG, TaskId
from procsv.base.outcome import Exit
from procsv.watchdog.core.events import Said, Ticked
from tests.simulation.model import history
from tests.simulation.model.account import Account
from tests.simulation.model.budget import i8_gives_up_at_the_budget
from tests.simulation.model.checkpoints import REPLACED, STAGING, files_of, is_safe, is_whole, saved_after
from tests.simulation.model.group.fewer import GivenUp
from tests.simulation.model.group.invariants import (
    i14_one_generation,
    i15_living_model_stays,
    i16_servers_end_last,
    i18_enough_workers_go_on,
)
from tests.simulation.model.program import value_at, value_from
from tests.simulation.model.program_process import ProgramProcess
from tests.simulation.model.shown import Kinds, by_kind
from tests.simulation.model.stream_store import TORN_RECORD, VERSION
from tests.simulation.model.world import STATUS_S_MAX, Violation, World

READY_S_MAX = 60.0  # in addition to the program's own time, once nothing disturbs it
SWEEP_S = 30.0  # time for a save or a start, after which no leftovers of a bad disk remain
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP)


def i1_one_writer(world: World, account: Account, fact: history.Fact) -> str:
    """At most one process tree of each task writes to a logdir: none is requested, started or
    writes while another holds the lock.
    """
    match fact:
        case history.SpawnAsked(task) if task.runs_program and world.writer_lock_is_held(task):
            return f"{task} is asked for while an older one's tree is alive"
        case history.Born(task) if task.runs_program and sum(p.task == task for p in world.processes.values()) > 1:
            return f"{task} is alive twice"
        case history.Wrote(pid) if pid not in world.processes:
            return "a dead trainer writes"
    return ""


def i2_acknowledged_can_be_restored(world: World, account: Account, fact: history.Fact) -> str:
    """Every acknowledged checkpoint can be restored: it is whole on disk, and would be after a power loss now."""
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
    """The newest acknowledged checkpoint stays whole, whatever happens to the disk."""
    if account.disk_version == world.disk.version or account.best is None:
        return ""
    account.disk_version = world.disk.version
    path = account.best.path
    if path in account.spoilt:
        return ""
    newer = saved_after(world.disk.files, account.best.sequence)  # on disk and not yet reported
    if not any(is_whole(world.disk.files, p) for p in (path, *newer)):
        return f"{path} was acknowledged, and cannot be restored"
    if not any(is_safe(world.disk.durable, p) for p in (path, *newer)):
        return f"{path} was acknowledged, and would not survive a power loss"
    return ""


def i3_resumes_from_the_newest(world: World, account: Account, fact: history.Fact) -> str:
    """A trainer resumes at or after the last acknowledged step that is whole and readable, and
    never from anything incomplete.
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
    if account.suspected >= 0:  # resuming from it crashed repeatedly: an earlier one will do
        newest = max((step for step in good if step < account.suspected), default=-1)
        if fact.step < account.suspected:  # from now on the newest state is a later one than this
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
    """Event files are readable, no step goes backwards except after a START mark, and no record is doubled."""
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
    """After the end no process, shared memory, socket, temporary file or lock is left."""
    if not isinstance(fact, history.LaunchEnded) or fact.exit_code is None:
        return ""
    alive = [p for p in world.processes.values() if not (p.is_orphan and p.is_frozen)]  # it ends when it continues
    left = [f"{process.task} {process.incarnation}" for process in alive]
    left += [f"socket {path}" for path in world.network.servers]
    left += [f"note {writer}" for writer in world.events.notes]
    if not fact.keep_memory:
        left += [f"shared memory {path}" for path in [*world.memory.slots, *world.memory.staged]]
    served = next((died for key, died in reversed(account.died.items()) if key[0] == CHECKPOINT), None)
    is_swept = not world.disk.trouble and world.clock.now_s > world.disk_bad_until_s + SWEEP_S  # with the next save
    if is_swept and (served is None or served.by == "itself"):  # otherwise no service came to sweep
        left += [path for path in world.disk.files if path.startswith((STAGING, REPLACED)) or path.endswith(".new")]
    return f"left behind: {', '.join(left)}" if left else ""


def i6_true_cause(world: World, account: Account, fact: history.Fact) -> str:
    """The recorded cause of a death is true, or "unknown"."""
    if isinstance(fact, history.Died):
        account.died[fact.task, fact.incarnation] = fact
    if not isinstance(fact, history.Journaled) or fact.event != "exited":
        return ""
    fields = fact.fields  # a standby that dies during its promotion was already a trainer
    died = next(died for died in reversed(account.died.values()) if died.pid == fields["pid"])
    if (fields["code"], fields["signal"]) != (died.exit.code, died.exit.signal_name):
        return f"{died.exit} is in the journal as {fields}"
    expected = _causes(world, died)
    cause = fields["cause"]
    return "" if cause in {*expected, "unknown"} else f"{fact.task} died by {died.by} with {died.exit}: {fields}"


def _causes(world: World, died: history.Died) -> set[str]:
    """Return the causes that may be given for a death."""
    is_stopping = world.watchdog is not None and (world.watchdog.is_stop_asked or _has_failed(world))
    is_stopping = is_stopping or (world.watchdog is not None and died.pid in world.watchdog.preempted)
    is_stopping = is_stopping or (died.task != TRAINER and _is_ending(world))
    stopped = {"stopped"} if is_stopping else set()
    if _is_of_broken_gang(world, died.task):  # the first one to end makes the others end
        return {"lost-peer"} | _causes_of_one(died, stopped)
    return _causes_of_one(died, stopped)


def _causes_of_one(died: history.Died, stopped: set[str]) -> set[str]:
    exit = died.exit
    if died.was_stuck and exit.signal in (signal.SIGKILL, signal.SIGABRT):
        return {"hang", "stopped", "killed", "crashed"}  # the first one hung
    if died.by == "watchdog":
        return {"stopped"} if exit.signal in (signal.SIGKILL, signal.SIGTERM) else set()
    if exit.signal in CRASHES:
        return {"crashed"}
    if exit.signal is not None:
        # Killed from outside just when the watchdog would have: the order is unknowable.
        return {"killed"} | (stopped if exit.signal == signal.SIGKILL else set())
    if died.by == "peer":
        return {"lost-peer", *stopped}
    if died.by == "program":
        return {"exception", "exit-code"} | (stopped if exit.code in (0, 75) else set())
    if exit.code == 0:
        return {"completed", *stopped}
    return {"exit-code", *stopped}


def _is_ending(world: World) -> bool:
    """Return whether tasks beside the trainer are asked to stop."""
    core = world.watchdog.core if world.watchdog is not None else None
    return core is None or core.is_ending


def _is_of_broken_gang(world: World, task: TaskId) -> bool:
    core = world.watchdog.core if world.watchdog is not None else None
    return core is not None and core.gang.breaks(task)


def _has_failed(world: World) -> bool:
    core = world.watchdog.core if world.watchdog is not None else None
    return core is not None and bool(core.failure)


def i7_ready_in_time(world: World, account: Account, fact: history.Fact) -> str:
    """READY comes in time, counted from the last disturbance."""
    if not isinstance(fact, history.CoreActed) or not isinstance(fact.event, Ticked):
        return ""
    now_s, program = world.clock.now_s, world.program
    limit_s = READY_S_MAX + program.import_s + program.restore_s + program.compile_s + program.step_s
    for process in world.processes.values():
        if not isinstance(process, ProgramProcess) or process.is_ready or process.is_orphan:
            continue
        if now_s - max(process.born_s, world.calm_from_s) > limit_s and process.step < program.steps:
            return f"{process.task} {process.incarnation} is not ready after {now_s - process.born_s:.0f} s"
    return ""


def i9_others_live_on(world: World, account: Account, fact: history.Fact) -> str:
    """A fault in one process leaves the others alone: a process that dies was hit, asked to end,
    orphaned, or in a broken gang.
    """
    if not isinstance(fact, history.Died) or fact.by in ("outside", "power", "program", "peer"):
        return ""
    watchdog = world.watchdog
    core = watchdog.core if watchdog is not None else None
    is_ending = fact.was_orphan or (core is not None and (core.is_ending or core.gang.breaks(fact.task)))
    is_preempted = watchdog is not None and fact.pid in watchdog.preempted
    if fact.task.runs_program and fact.by == "watchdog":
        is_right = is_ending or is_preempted or fact.was_stuck
        return "" if is_right else f"the watchdog has killed {fact.task} {fact.incarnation}, which was well"
    if fact.task.runs_program and fact.exit == Exit(75, None):
        is_right = is_ending or is_preempted
        return "" if is_right else f"{fact.task} {fact.incarnation} stopped, although nobody had asked"
    if fact.task.runs_program or fact.task in (WATCHDOG, STANDBY):
        return ""
    is_right = is_ending or (fact.by == "watchdog" and fact.was_stuck)
    return "" if is_right else f"the {fact.task} service ended ({fact.exit}, by {fact.by}) in the middle of a run"


def i10_status_answers(world: World, account: Account, fact: history.Fact) -> str:
    """`procsv status` always answers within 1 s, and truthfully."""
    if not isinstance(fact, history.Asked):
        return ""
    if fact.answer is None or fact.seconds > STATUS_S_MAX:
        return f"no answer within {STATUS_S_MAX} s"
    pids = {row["role"]: row["pid"] for row in fact.answer["processes"]}
    for task in world.settings.tasks:
        process = world.find(task)
        if not isinstance(process, ProgramProcess) or process.is_orphan or process.is_frozen:
            continue
        if process.born_s < world.clock.now_s - STATUS_S_MAX and pids[str(task)] != process.pid:
            return f"says that {task} is {pids[str(task)]}, not {process.pid}"
    if fact.answer["durable_step"] not in {-1, *account.acknowledged.values(), *account.restored_steps}:
        return f"says that step {fact.answer['durable_step']} is durable"
    return ""


def i11_bit_identical(world: World, account: Account, fact: history.Fact) -> str:
    """A deterministic program ends with the same state as without faults, and with all records written."""
    if not isinstance(fact, history.Finished):
        return ""
    account.finished = fact
    if fact.step != world.program.steps or fact.value != _expected(world, fact):
        return f"ended at step {fact.step} with a state that is not that step's"
    return ""


def _expected(world: World, fact: history.Finished) -> int:
    return value_from(world.program.first_value(fact.incarnation), fact.step)


def i19_acknowledged_is_on_disk(world: World, account: Account, fact: history.Fact) -> str:
    """What an attempt counts as saved is on disk, byte for byte, and is a snapshot that it took itself."""
    if isinstance(fact, history.Taken):
        account.taken[fact.run, fact.incarnation, fact.sequence] = (fact.step, fact.value)
    if not isinstance(fact, history.Counted) or fact.path in account.spoilt:
        return ""
    taken = account.taken.get((fact.run, fact.incarnation, fact.sequence))
    if taken is None:
        return f"attempt {fact.incarnation} takes its snapshot {fact.sequence} for saved, and has taken none of that number"
    content = world.disk.files.get(files_of(fact.path)[0])
    if content is None:  # deleted since in favour of newer ones
        return "" if saved_after(world.disk.files, fact.sequence) else f"{fact.path} was acknowledged, and is not there"
    if content.content != ("variables", *taken):
        return f"{fact.path} was acknowledged, and holds {content.content} in the place of {taken}"
    return ""


def i12_the_dead_are_not_heard(world: World, account: Account, fact: history.Fact) -> str:
    """Messages of older attempts have no effect."""
    match fact:
        case history.Born(task, incarnation):
            account.newest_heard = {key: n for key, n in account.newest_heard.items() if key[0] != task}
            account.newest[task] = incarnation
        case history.Received(server, task, incarnation, body):
            newest = account.newest_heard.get((server, task), 0)
            if incarnation < newest:
                return f"{server} has heard {body} of {task} {incarnation}, after {newest}"
            account.newest_heard[server, task] = incarnation
        case history.CoreActed(Said(task, incarnation) as said, actions) if task.runs_program:
            about = [action for action in actions if getattr(action, "task", task) == task]
            if incarnation != account.newest[task] and about:
                return f"{task} {incarnation}'s {type(said.body).__name__} led to {about}"
    return ""


Invariant = Callable[[World, Account, history.Fact], str]
INVARIANTS: dict[Invariant, Kinds] = {  # each with the facts it looks at
    i1_one_writer: (history.SpawnAsked, history.Born, history.Wrote),
    i2_acknowledged_can_be_restored: (history.Acknowledged,),
    i3_resumes_from_the_newest: (history.Journaled, history.Restored),
    i4_event_files: (history.Appended,),
    i5_nothing_is_left: (history.LaunchEnded,),
    i6_true_cause: (history.Died, history.Journaled),
    i7_ready_in_time: (history.CoreActed,),
    i8_gives_up_at_the_budget: (history.Born, history.CoreActed, history.Journaled, history.SpawnAsked),
    i9_others_live_on: (history.Died,),
    i10_status_answers: (history.Asked,),
    i11_bit_identical: (history.Finished,),
    i12_the_dead_are_not_heard: (
        history.Born,
        history.Received,
        history.Restored,
        history.CoreActed,
    ),
    i19_acknowledged_is_on_disk: (history.Taken, history.Counted),
    i14_one_generation: (history.Joined, history.Stepped),
    i15_living_model_stays: (history.Died, history.Filled, history.Whole),
    i16_servers_end_last: (history.Born, history.CoreActed, history.Died),
    i18_enough_workers_go_on: (history.Born, *GivenUp.LOOKS_AT),
}
SHOWN = by_kind(INVARIANTS, get_args(history.Fact))


class Checker:
    """All invariants over one world. It raises the first violation."""

    def __init__(self, world: World) -> None:
        self._world, self.account = world, Account()
        world.watchers.append(self.check)

    def check(self, fact: history.Fact) -> None:
        for invariant in SHOWN[type(fact)]:
            if why := invariant(self._world, self.account, fact):
                raise Violation(f"{invariant.__name__}: {why}")

    def after_event(self) -> None:
        if self._world.disk.version == self.account.disk_version:
            return
        if why := i2_after_event(self._world, self.account):
            raise Violation(f"i2_acknowledged_can_be_restored: {why}")
