"""The invariants of a run on several machines, over all that happens on them: I2, I3, I13 to I16,
ends, places and clocks.

They keep their own account and never ask the code under test whether it was right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import get_args

from procsv.base import exit_codes
from procsv.base.cluster import PS, SPARE
from procsv.base.identity import WATCHDOG, TaskId
from procsv.ipc.messaging.checkpoint_messages import Durable
from procsv.ipc.messaging.member_messages import EndMember, MoveMember
from procsv.ipc.messaging.message import Message
from procsv.watchdog.core.events import LogdirTaken, StopAsked
from tests.simulation.model import history
from tests.simulation.model.checkpoints import is_whole, saved_after
from tests.simulation.model.group.fewer import GivenUp
from tests.simulation.model.machines import facts
from tests.simulation.model.machines.coordinator import CoordinatorLaunch
from tests.simulation.model.machines.copy_invariants import Copies, i17_copies_are_new, i17_copies_are_whole
from tests.simulation.model.machines.fewer_invariants import i18_enough_workers_go_on
from tests.simulation.model.machines.fleet import Fleet
from tests.simulation.model.machines.machine_world import MachineWorld
from tests.simulation.model.machines.member import MemberLaunch
from tests.simulation.model.program import value_at
from tests.simulation.model.shown import Kinds, by_kind
from tests.simulation.model.world import Violation

CLOCK_S = 0.01  # how far clocks drift apart within the time over which messages are compared
LATE_S = 10.0  # added to the time that a launch may take to end
ORDER_S = 10.0  # within which a task ends after an order to


@dataclass(slots=True)
class Tasks:
    """What the tasks of one run share."""

    ring: int = 0
    states: dict[int, tuple[int, int]] = field(default_factory=dict)
    has_model: bool = False


@dataclass(slots=True)
class FleetAccount:
    holders: list[str] = field(default_factory=lambda: [""])  # runs that have taken the logdir, in order
    best: Durable | None = None  # the newest acknowledged checkpoint
    disk_version: int = -1
    opened: set[str] = field(default_factory=set)  # runs whose checkpoint service has looked at the logdir
    births: list[str] = field(default_factory=list)  # coordinators' runs, in the order of their terms
    obeyed: dict[str, int] = field(default_factory=dict)  # machine -> the latest coordinator that it has obeyed
    tasks: dict[int, Tasks] = field(default_factory=dict)  # by what they share
    ordered_s: dict[str, float] = field(
        default_factory=dict
    )  # machine -> when it was last told something by its coordinator
    at_once: set[str] = field(default_factory=set)  # machines whose coordinator ends all tasks without waiting
    places: dict[str, facts.Moving] = field(default_factory=dict)  # scheduler -> what the next run of it must be
    lost: dict[str, set[int]] = field(
        default_factory=dict
    )  # scheduler -> launches that any of its runs was moved away from
    formed: dict[str, dict[TaskId, int]] = field(
        default_factory=dict
    )  # scheduler -> launches and tasks of its newest run
    newest: dict[str, str] = field(default_factory=dict)  # scheduler -> its newest run
    run_of: dict[int, str] = field(default_factory=dict)  # what tasks share -> run
    scheduler_of: dict[str, str] = field(default_factory=dict)  # run -> scheduler
    gone_s: dict[str, float] = field(default_factory=dict)  # run -> when its coordinator was gone
    told: dict[str, int] = field(default_factory=dict)  # machine -> the code that its launch is to end with
    given: dict[tuple[str, str], list[Message]] = field(
        default_factory=dict
    )  # run and machine -> orders not carried out
    born: dict[int, tuple[TaskId, int, str, str]] = field(
        default_factory=dict
    )  # pid -> task, attempt, machine, start of the job
    said: dict[str, int] = field(default_factory=dict)  # scheduler -> the code of its coordinator


Any = history.Fact | facts.Fact


def i2_acknowledged_stays(fleet: Fleet, account: FleetAccount, fact: Any, world: MachineWorld) -> str:
    """An acknowledged checkpoint is never lost: the newest one is there, and `checkpoint` names it
    or a newer one.
    """
    if isinstance(fact, history.Acknowledged):
        best = account.best
        if best is None or fact.news.sequence > best.sequence:
            account.best, account.disk_version = fact.news, -1
    return ""


def i2_after_event(fleet: Fleet, account: FleetAccount) -> str:
    disk, best = fleet.logdir.disk, account.best
    if best is None or account.disk_version == disk.version:
        return ""
    account.disk_version = disk.version
    newer = saved_after(disk.files, best.sequence)
    if not any(is_whole(disk.files, path) for path in (best.path, *newer)):
        return f"{best.path} was acknowledged, and cannot be restored"
    latest = fleet.logdir.latest[-1:]
    if latest and latest[0] not in (best.path, *newer):
        return f"`checkpoint` names {latest[0]}, although {best.path} was acknowledged"
    return ""


def i3_resumes_from_the_newest(fleet: Fleet, account: FleetAccount, fact: Any, world: MachineWorld) -> str:
    """A trainer resumes no earlier than at the newest acknowledged step, with that step's state."""
    if not isinstance(fact, history.Restored):
        return ""
    if fact.value != value_at(fact.step):
        return f"resumed from a state that is not that of step {fact.step}"
    best, launch = account.best, world.launch_here
    is_holder = isinstance(launch, CoordinatorLaunch) and launch.run == account.holders[-1]
    if best is not None and is_holder and fact.step < best.step:
        return f"resumed from step {fact.step}, although step {best.step} was acknowledged"
    return ""


def i13_one_writer(fleet: Fleet, account: FleetAccount, fact: Any, world: MachineWorld) -> str:
    """Only the coordinator that took the logdir last writes, from its first look at the contents on."""
    match fact:
        case facts.LeaseTaken(run):
            account.holders.append(run)
        case facts.LeaseLeft(run) if run in account.holders:
            account.holders.remove(run)
        case facts.Opened(run):
            account.opened.add(run)
        case facts.Changed(run, path) if run != account.holders[-1] and account.holders[-1] in account.opened:
            return f"{run} changes {path}, although {account.holders[-1]} has taken the logdir"
    return ""


def i13_one_word(fleet: Fleet, account: FleetAccount, fact: Any, world: MachineWorld) -> str:
    """One coordinator's orders take effect in a term, and a machine obeys none of an earlier term
    than its newest.
    """
    match fact:
        case facts.TermWritten(run, number, replaced):
            account.births.append(run)
            return f"two coordinators have term {number}: {replaced} and {run}" if replaced else ""
        case facts.Ordered():
            return _wrong_order(fleet, account, fact)
    return ""


def _wrong_order(fleet: Fleet, account: FleetAccount, fact: facts.Ordered) -> str:
    account.ordered_s[fact.machine] = fleet.clock.now_s
    birth = account.births.index(fact.run)
    if birth < account.obeyed.get(fact.machine, 0):
        return f"{type(fact.order).__name__} of {fact.run} takes effect on {fact.machine} after a later coordinator's"
    account.obeyed[fact.machine] = birth
    if account.scheduler_of.get(fact.run, fact.scheduler) != fact.scheduler:
        return f"{fact.machine} of {fact.scheduler} obeys a coordinator of {account.scheduler_of[fact.run]}"
    return ""


def orders_arrive_as_given(fleet: Fleet, account: FleetAccount, fact: Any, world: MachineWorld) -> str:
    """A member executes each order at most once, and none after a later one."""
    match fact:
        case facts.Given(run, machine, order):
            account.given.setdefault((run, machine), []).append(order)
        case facts.Ordered(machine, run=run, order=order) if not isinstance(order, EndMember | MoveMember):
            given = account.given.get((run, machine), [])
            if order not in given:
                return f"{machine} carries out {order} of {run} again, or after one that was given later"
            del given[: given.index(order) + 1]  # the earlier ones were withdrawn
    return ""


def _tasks(account: FleetAccount, world: MachineWorld) -> Tasks:
    return account.tasks.setdefault(id(world.rings), Tasks())


def i14_one_generation(fleet: Fleet, account: FleetAccount, fact: Any, world: MachineWorld) -> str:
    """No task of a gang makes a step after the next generation has formed, in its run or in the next one."""
    match fact:
        case facts.Formed(scheduler, run):
            account.newest[scheduler], account.scheduler_of[run] = run, scheduler
            account.run_of[id(fleet.group(run).rings)] = run
        case history.Joined(task, ring, older) if older and fleet.settings.restart == "gang":
            return f"{task} has joined generation {ring} while {', '.join(older)} of an older one lives"
        case history.Stepped(task, ring, state):
            tasks, run = _tasks(account, world), account.run_of[id(world.rings)]
            met_before = bool(
                world.rings.find(ring).lost
            )  # a task that was frozen then ends its old step, and nobody sees it
            if account.newest[account.scheduler_of[run]] != run and not met_before:
                return f"{task} of {run} makes a step after {account.newest[account.scheduler_of[run]]} has formed"
            if ring < tasks.ring and not met_before:
                return f"{task} of generation {ring} makes a step after generation {tasks.ring} has"
            if ring > tasks.ring:
                tasks.ring, tasks.states = ring, {}
            if tasks.states.setdefault(state[0], state) != state:
                return f"{task} is at step {state[0]} with a state that another of its gang does not have"
    return ""


def i15_living_model_stays(fleet: Fleet, account: FleetAccount, fact: Any, world: MachineWorld) -> str:
    """A living model is never overwritten with an older state, unless a server of its run was lost."""
    match fact:
        case history.Died(task) if task.role == PS:
            _tasks(account, world).has_model = False
        case history.Filled(_, living_step, step):
            tasks = _tasks(account, world)
            if tasks.has_model and step < living_step:
                return f"step {step} was restored over a living model at step {living_step}"
            tasks.has_model = False
        case history.Whole():
            _tasks(account, world).has_model = True
    return ""


def i16_servers_end_last(fleet: Fleet, account: FleetAccount, fact: Any, world: MachineWorld) -> str:
    """A coordinator ends no server before the chief of the same run, which may have a state to save."""
    match fact:
        case history.CoreActed(StopAsked(now=True) | LogdirTaken()):
            account.at_once.add(world.name)
        case history.Born(task) if task == fleet.tasks[0]:
            account.at_once.discard(world.name)
        case history.Died(task, by=("watchdog" | "itself")) if task.role == PS and not fact.was_orphan:
            launch = world.launch_here
            if not isinstance(launch, MemberLaunch) or launch.term is None or fact.was_stuck or launch.begins_anew:
                return ""
            if fleet.clock.now_s > account.ordered_s.get(world.name, -ORDER_S) + ORDER_S:
                return ""  # its launch has given up on the coordinator
            home = fleet.find_world(launch.term.hosts[0])
            chief, coordinator = home.find(fleet.tasks[0]), home.launch_here
            is_still = coordinator is None or coordinator.is_frozen
            if is_still or not fleet.links.joins(home.name, world.name):
                return ""  # it has no coordinator and got a signal on its own machine
            if chief is None or chief.is_stuck or home.name in account.at_once or home.is_off:
                return ""
            if isinstance(coordinator, CoordinatorLaunch) and coordinator.run == launch.term.run:
                return f"{task} was ended while {fleet.tasks[0]} {chief.incarnation} is alive"
    return ""


def places_are_right(fleet: Fleet, account: FleetAccount, fact: Any, world: MachineWorld) -> str:
    """A living launch keeps its task, a lost one gets one spare, no launch has two tasks, and all come as placed."""
    match fact:
        case facts.Moving(scheduler, _, places, lost):
            account.places[scheduler] = fact
            account.lost.setdefault(scheduler, set()).update(lost)
            ranks, names = [rank for _, rank in places], [task for task, _ in places]
            if len(set(ranks)) != len(ranks) or len(set(names)) != len(names):
                return f"two launches have one place: {places}"
            if set(lost) & set(ranks):
                return f"launch {set(lost) & set(ranks)} is lost, and has a place"
            if set(fleet.tasks[1:]) - set(names):
                return f"nobody has {set(fleet.tasks[1:]) - set(names)}"
            before = account.formed.get(scheduler, {})
            for task, rank in places:
                if task.role != SPARE and rank != before.get(task) and before.get(task) not in lost:
                    return f"{task} moves to launch {rank}, although {before.get(task)} is there"
        case facts.Formed(scheduler, _, _, launches):
            account.formed[scheduler] = {task: rank for task, rank, _ in launches}
            told = account.places.pop(scheduler, None)
            came = {(task, rank) for task, rank, _ in launches if rank}
            if told is not None:
                # A lost launch may be back in time and get its task again: then the spare is
                # refused.
                came = {(task, rank) for task, rank in came if rank not in account.lost[scheduler]}
            if told is not None and not came <= set(told.places):
                return f"{sorted(came)} have come, and {sorted(told.places)} were told to"
    return ""


def adopted_are_right(fleet: Fleet, account: FleetAccount, fact: Any, world: MachineWorld) -> str:
    """A coordinator adopts only processes of the same start of its job, on the machine that it names."""
    launch = world.launch_here if world is not None else None
    match fact:
        case history.Born(task, incarnation, pid) if task.runs_program and launch is not None:
            account.born[pid] = (task, incarnation, world.name, launch.slot.attempt.scheduler)
        case history.Journaled("adopted", task, incarnation, fields) if launch is not None:
            found = (task, incarnation, fields["host"], launch.slot.attempt.scheduler)
            if account.born.get(fields["pid"]) != found:
                return f"{task} {incarnation} is adopted as {found}, and is {account.born.get(fields['pid'])}"
    return ""


def clocks_are_right(fleet: Fleet, account: FleetAccount, fact: Any, world: MachineWorld) -> str:
    """A member's moments are converted to no earlier than they were, and to no later than by the
    message's delay.
    """
    if not isinstance(fact, facts.ClockSeen) or fleet.was_suspended(fact.machine, world.name):
        return ""
    if -CLOCK_S <= fact.error_s <= fact.delay_s + CLOCK_S:
        return ""
    return f"the clock of {fact.machine} is taken to be {fact.error_s:.3f} s off, by a message of {fact.delay_s:.3f} s"


def ends_agree(fleet: Fleet, account: FleetAccount, fact: Any, world: MachineWorld) -> str:
    """A launch ends with the code from its coordinator or from run.json, or with 75 if it does not know the end."""
    match fact:
        case facts.ToldEnd(_, _, exit_code):
            account.told[world.name] = exit_code
        case history.Born(task) if task == WATCHDOG:
            account.told.pop(world.name, None)
        case facts.CoordinatorEnds(scheduler, _, exit_code):
            account.said[scheduler] = exit_code
        case facts.Left(scheduler, rank, code, again, why) if rank and not again:
            told = account.told.get(world.name)
            if told is not None and code != told:
                return f"launch {rank} of {scheduler} ends with {code} ({why}), and was told {told}"
            if told not in (None, exit_codes.RESUMABLE) and told != account.said.get(scheduler):
                return f"launch {rank} of {scheduler} was told {told}, and its coordinator ends with {account.said}"
            if told is None and code not in (
                exit_codes.RESUMABLE,
                exit_codes.LOGDIR_UNUSABLE,
                account.said.get(scheduler),
            ):
                return f"launch {rank} of {scheduler} ends with {code} ({why}), and nobody has told it so"
    return ""


def ends_in_time(fleet: Fleet, account: FleetAccount, fact: Any, world: MachineWorld) -> str:
    """A member without a coordinator waits no longer than configured, and ends its task within the grace period."""
    launch = world.launch_here if world is not None else None
    match fact:
        case history.Died(task) if task == WATCHDOG and isinstance(launch, CoordinatorLaunch):
            account.gone_s[launch.run] = fleet.clock.now_s
        case facts.Left() if isinstance(launch, MemberLaunch) and launch.term is not None:
            gone_s, settings = account.gone_s.get(launch.term.run), fleet.settings
            limit_s = settings.coordinator_timeout_s + settings.grace_s + LATE_S
            if gone_s is not None and fleet.clock.now_s > max(gone_s, fleet.calm_from_s) + limit_s:
                return f"launch {fact.rank} of {fact.scheduler} ends {fleet.clock.now_s - gone_s:.0f} s after its coordinator"
    return ""


Invariant = Callable[[Fleet, FleetAccount, Any, MachineWorld], str]
INVARIANTS: dict[Invariant, Kinds] = {  # each with the facts it looks at
    i2_acknowledged_stays: (history.Acknowledged,),
    i3_resumes_from_the_newest: (history.Restored,),
    i13_one_writer: (facts.LeaseTaken, facts.LeaseLeft, facts.Opened, facts.Changed),
    i13_one_word: (facts.TermWritten, facts.Ordered),
    orders_arrive_as_given: (facts.Given, facts.Ordered),
    i14_one_generation: (facts.Formed, history.Joined, history.Stepped),
    i15_living_model_stays: (history.Died, history.Filled, history.Whole),
    i16_servers_end_last: (history.CoreActed, history.Born, history.Died),
    places_are_right: (facts.Moving, facts.Formed),
    adopted_are_right: (history.Born, history.Journaled),
    clocks_are_right: (facts.ClockSeen,),
    ends_agree: (facts.ToldEnd, history.Born, facts.CoordinatorEnds, facts.Left),
    ends_in_time: (history.Died, facts.Left),
}
OF_FEWER = {i18_enough_workers_go_on: (facts.Formed, facts.CoordinatorEnds, *GivenUp.LOOKS_AT)}
OF_COPIES = {
    i17_copies_are_whole: (facts.Copied,),
    i17_copies_are_new: (
        facts.Formed,
        history.Published,
        facts.Copied,
        facts.Disturbed,
        history.Died,
        facts.MachineLost,
        history.Restored,
    ),
}
KINDS = get_args(history.Fact) + get_args(facts.Fact)
SHOWN, SHOWN_OF_FEWER = by_kind(INVARIANTS, KINDS), by_kind(OF_FEWER, KINDS)
SHOWN_OF_COPIES = by_kind(OF_COPIES, KINDS)


class FleetChecker:
    """All invariants over one fleet. It raises the first violation."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self.account, self.copies = fleet, FleetAccount(), Copies()
        self._given_up: dict[str, GivenUp] = {}  # by run
        fleet.watchers.append(self.check)

    def check(self, fact: Any, world: MachineWorld) -> None:
        fleet, kind = self._fleet, type(fact)
        for invariant in SHOWN[kind]:
            if why := invariant(fleet, self.account, fact, world):
                fleet.fail(invariant.__name__, why)
        for of_fewer in SHOWN_OF_FEWER[kind]:
            if why := of_fewer(fleet, self._given_up, fact, world):
                fleet.fail(of_fewer.__name__, why)
        for of_copies in SHOWN_OF_COPIES[kind]:
            if why := of_copies(fleet, self.copies, fact, world):
                fleet.fail(of_copies.__name__, why)

    def after_event(self) -> None:
        if self._fleet.failed:
            raise Violation(self._fleet.failed)
        if self._fleet.logdir.disk.version == self.account.disk_version:
            return
        if why := i2_after_event(self._fleet, self.account):
            self._fleet.fail("i2_acknowledged_stays", why)
