"""I8: the run gives up exactly at its budget. The invariant counts the failures itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

from procsv.base import identity
from procsv.base.cluster import PS
from procsv.base.identity import TaskId
from procsv.ipc.messaging.checkpoint_messages import Durable
from procsv.ipc.messaging.watchdog_messages import FirstStepDone, TrainsInStep
from procsv.watchdog.core.events import Ended, RecycleAsked, Said
from tests.simulation.model import history
from tests.simulation.model.account import Account, Budget
from tests.simulation.model.world import World

FAILURES_SAME_MAX, FAILURES_EARLY_MAX = 3, 2
PERMANENT = (78, 126, 127)


def i8_gives_up_at_the_budget(world: World, account: Account, fact: history.Fact) -> str:
    """The run gives up exactly at its budget: not a failure earlier, and not a restart later.

    Servers are left out, because the time they have served counts for them, too.
    """
    budgets = account.budgets
    match fact:
        case history.Born(identity.WATCHDOG):
            budgets.clear()
            budgets.update({task: Budget() for task in world.settings.tasks})
            if world.settings.launch.restart == "gang":
                _bind(world, budgets)
        case history.Born(task) if task in budgets:
            budgets[task].is_broken = False
        case history.CoreActed(Said(_, _, TrainsInStep())) if world.settings.launch.restart == "auto":
            _bind(world, budgets)
        case history.CoreActed(RecycleAsked(by_hand=True)):
            for budget in budgets.values():
                budget.failures = budget.early = 0
                budget.same.clear()
                budget.has_gone_back = False
        case history.CoreActed(Ended(task) as ended) if task in budgets and task.role != PS:
            _ended(account, ended)
        case history.CoreActed(event):
            _count(budgets, event)
        case history.Journaled("state_suspected", task):
            budgets[task].has_gone_back = True
        case history.Journaled("restarting", task) if task.role != PS and not _is_shared(budgets, task):
            return _wrong_start(world, task, budgets)
        case history.SpawnAsked(task) if task in budgets and _is_shared(budgets, task):
            return _wrong_start(
                world, task, budgets
            )  # tasks that ended because of another were reported before the decision
        case history.Journaled("gave_up" | "task_given_up", task, _, fields) if task.role != PS:
            return _wrong_end(world, budgets[task], fields)
    return ""


def _bind(world: World, budgets: dict[TaskId, Budget]) -> None:
    """Give all training tasks one record: the chief's."""
    chief = budgets[world.chief]
    for task in budgets:
        if task.role in (world.chief.role, "worker"):
            budgets[task] = chief


def _is_shared(budgets: dict[TaskId, Budget], task: TaskId) -> bool:
    """Return whether `task` belongs to a gang."""
    return len([budget for budget in budgets.values() if budget is budgets[task]]) > 1


def _wrong_start(world: World, task: TaskId, budgets: dict[TaskId, Budget]) -> str:
    why = _spent(world, budgets[task])
    return f"{task} is started again, although {why}" if why else ""


def _ended(account: Account, ended: Ended) -> None:
    budgets, budget = account.budgets, account.budgets[ended.task]
    if budget.is_broken:
        return
    budget.is_broken = _is_shared(budgets, ended.task) and ended.exit.code != 0
    if _is_free(account.died[ended.task, ended.incarnation]):
        budget.last = None
    elif ended.exit.code in (0, 75) or (ended.words is not None and ended.words.lost_peer):
        budget.last = ended if ended.exit.code in (0, 75) else None
    else:
        _count_failure(budget, ended)


def _is_free(died: history.Died) -> bool:
    """Return whether we ordered the death, which costs nothing. A hang is the program's failure, though."""
    return died.by == "watchdog" and not died.was_stuck


def _count_failure(budget: Budget, ended: Ended) -> None:
    exit, words = ended.exit, ended.words
    budget.failures, budget.last = budget.failures + 1, ended
    if exit.code is not None and words is not None and words.type:
        budget.same[words.type, words.message, words.step if words.step is not None else -1] += 1
    if exit.code is not None and not budget.was_ready:
        budget.early += 1


def _count(budgets: dict[TaskId, Budget], event: Any) -> None:
    match event:
        case Said(task, _, FirstStepDone() as recovered) if task in budgets:
            budget = budgets[task]
            if not budget.was_ready or (recovered.restored_step < budget.durable_step and not budget.has_gone_back):
                budget.durable_step = recovered.restored_step
            budget.was_ready = True
        case Said(identity.CHECKPOINT, _, Durable() as news):
            for budget in budgets.values():
                if news.step > budget.durable_step:
                    budget.durable_step, budget.failures, budget.has_gone_back = news.step, 0, False
                    budget.same = Counter({key: count for key, count in budget.same.items() if key[2] >= news.step})


def _spent(world: World, budget: Budget) -> str:
    """Return why the task may not restart, or "" if it may."""
    if budget.last is None or budget.last.exit.code in (0, 75):
        return ""
    if budget.failures >= world.settings.launch.max_failures:
        return f"there were {budget.failures} failures in a row"
    if max(budget.same.values(), default=0) >= FAILURES_SAME_MAX:
        return "it fails the same way every time"
    if budget.early >= FAILURES_EARLY_MAX:
        return f"it has failed {budget.early} times before its first step"
    return "its exit says that it would not help" if budget.last.exit.code in PERMANENT else ""


def _wrong_end(world: World, budget: Budget, fields: dict[str, Any]) -> str:
    """Return what is wrong with giving up now."""
    why = str(fields["why"])
    if "new step on disk" in why and budget.failures != world.settings.launch.max_failures:
        return f"gave up after {budget.failures} failures: {why}"
    if why.startswith("deterministic") and max(budget.same.values(), default=0) != FAILURES_SAME_MAX:
        return f"gave up as deterministic: {why}, counted {budget.same}"
    return ""
