"""The simulation can fail: for each invariant, code that breaks it makes that very invariant report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from procsv.base.identity import CHECKPOINT, SUMMARY, TRAINER
from procsv.ipc.messaging.checkpoint_messages import Durable
from procsv.ipc.messaging.delivery import Inbox
from procsv.ipc.messaging.endpoint import ServerEndpoint
from procsv.services.checkpoint.core.restore_choice import Restoring
from procsv.services.checkpoint.core.states import States
from procsv.services.summary.core import SummaryCore
from procsv.watchdog.core.actions import Action, KillTree
from procsv.watchdog.core.end.closing import Closing
from procsv.watchdog.core.events import Ended
from procsv.watchdog.core.restarts import causes
from procsv.watchdog.core.restarts.causes import Cause
from procsv.watchdog.core.restarts.goodput import Attempts
from procsv.watchdog.core.restarts.restart_policy import History
from procsv.watchdog.core.run import Core
from procsv.watchdog.core.service_events import ServiceEvents
from procsv.watchdog.core.task.trainer import TrainerSupervisor
from procsv.watchdog.edge.conversation import Conversation
from tests.simulation.model import faults, memory, store, trainer
from tests.simulation.model.checkpoints import SAVE_PATH, Intent
from tests.simulation.model.commit import SimStagingArea, Steps
from tests.simulation.model.disk import SimDisk
from tests.simulation.model.program import Program, ProgramError
from tests.simulation.model.run import Run
from tests.simulation.reported import assert_reported

SEEDS_MAX = 40  # of the same program and faults: only chance differs

Break = Callable[[pytest.MonkeyPatch], None]
Plan = list[tuple[float, faults.Fault]]

KILL_TRAINER: Plan = [(12.0, faults.kill(TRAINER))]
KILL_CHECKPOINT: Plan = [(12.0, faults.kill(CHECKPOINT))]


def _restarts_beside_the_old_tree(patch: pytest.MonkeyPatch) -> None:
    died = TrainerSupervisor.died

    def without_waiting(self: TrainerSupervisor, ended: Ended, now_s: float) -> list[Action]:
        wanted = died(self, ended, now_s)
        self.stopping.tree_is_gone = True
        return wanted

    patch.setattr(TrainerSupervisor, "died", without_waiting)


def _acknowledges_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    def persist(self: Any, state: Any, reason: Any, plan: Any) -> Durable:
        path = f"{SAVE_PATH}-{state.step}"
        return Durable(state.sequence, state.step, state.incarnation, path, reason, 1, 0.1, (path,), run=state.run)

    patch.setattr(store.SimStore, "persist", persist)


def _forgets_to_sync_the_directory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimDisk, "fsync_dir", lambda self, directory: None)


def _deletes_before_the_new_one_is_in_place(patch: pytest.MonkeyPatch) -> None:
    commit = SimStagingArea.commit_in_steps

    def deleting(self: SimStagingArea, staging: str, intent: Intent) -> Steps[list[str]]:
        for path in intent.delete:
            self.delete(path)
        return (yield from commit(self, staging, intent))

    patch.setattr(SimStagingArea, "commit_in_steps", deleting)


def _resumes_from_the_oldest(patch: pytest.MonkeyPatch) -> None:
    find = store.SimStore.find_checkpoint

    def oldest(self: Any, plan: Any, before: int = -1) -> Any:
        found = find(self, plan, before)
        return replace(found, checkpoint=self._candidate(found.kept[0], True)) if found.kept else found

    patch.setattr(store.SimStore, "find_checkpoint", oldest)


def _begins_again_where_nothing_is_good(patch: pytest.MonkeyPatch) -> None:
    answer = Restoring._answer

    def fresh(self: Any, source: Any, path: str, step: int, error: str) -> Any:
        return answer(self, "fresh" if error else source, path, step, "")

    patch.setattr(Restoring, "_answer", fresh)


def _writes_a_batch_that_is_said_again(patch: pytest.MonkeyPatch) -> None:
    records = SummaryCore.records

    def again(self: Any, who: bytes, message: Any) -> Any:
        stream = self._streams.get(message.writer)
        if stream is not None and message.first <= stream.through:
            stream.through = message.first - 1
        return records(self, who, message)

    patch.setattr(SummaryCore, "records", again)


def _quits_before_the_services_have_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Closing, "advance_closing", Closing.quit)


def _says_the_wrong_cause(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(causes, "find_cause", lambda *_args, **_more: Cause("exception", "OSError"))


def _never_answers_restore(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Restoring, "advance_question", lambda self, *_args: [])


def _gives_up_one_failure_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(History, "is_spent", lambda self: self.no_progress_count > self.launch.max_failures)
    patch.setattr(Attempts, "add_attempt", lambda self, attempt: "")  # repeated failures alone are enough


def _gives_up_one_failure_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(History, "is_spent", lambda self: self.no_progress_count >= self.launch.max_failures - 1)


def _never_calls_a_failure_deterministic(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(History, "_same_failure", lambda self, death: "")


def _kills_the_trainer_with_the_service(patch: pytest.MonkeyPatch) -> None:
    ended = ServiceEvents.ended

    def with_trainer(self: ServiceEvents, event: Ended, now_s: float) -> list[Action]:
        return [*ended(self, event, now_s), KillTree(TRAINER, self._chief.incarnation)]

    patch.setattr(ServiceEvents, "ended", with_trainer)


def _does_not_answer_status(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Conversation, "_heard_at_control", lambda self, received: None)


def _says_an_old_pid(patch: pytest.MonkeyPatch) -> None:
    def started(self: Core, event: Any) -> list[Action]:
        self.chief.pid = self.chief.pid or event.pid
        return []

    died = TrainerSupervisor.died

    def keep_pid(self: TrainerSupervisor, ended: Ended, now_s: float) -> list[Action]:
        pid = self.pid
        wanted = died(self, ended, now_s)
        self.pid = pid
        return wanted

    patch.setattr(Core, "_started", started)
    patch.setattr(TrainerSupervisor, "died", keep_pid)


def _publishes_the_first_bytes_again(patch: pytest.MonkeyPatch) -> None:
    publish = memory.SimArena.publish

    def first(self: Any, slot: Any, sequence: int, step: int, value: int) -> Any:
        self.first = getattr(self, "first", value)
        return publish(self, slot, sequence, step, self.first)

    patch.setattr(memory.SimArena, "publish", first)


def _trains_something_else(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(trainer, "advance", lambda value, step: value + step)


def _counts_what_others_have_saved(patch: pytest.MonkeyPatch) -> None:
    """Go by the sequence alone, though each attempt starts with 1."""
    patch.setattr(trainer.Trainer, "_number", lambda self: iter(()))
    patch.setattr(States, "is_saved", lambda self, run, incarnation, sequence: sequence <= self.durable_sequence)
    patch.setattr(Durable, "is_of", lambda self, run, incarnation: True)


def _hears_the_dead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ServerEndpoint, "_why_dropped", lambda self, message: "")
    patch.setattr(Inbox, "is_news", lambda self, incarnation, seq: True)


def _believes_the_dead(patch: pytest.MonkeyPatch) -> None:
    said = TrainerSupervisor.said

    def believe(self: TrainerSupervisor, words: Any, now_s: float) -> list[Action]:
        return said(self, type(words)(words.task, self.incarnation, words.body, words.answers), now_s)

    patch.setattr(TrainerSupervisor, "said", believe)
    patch.setattr(ServerEndpoint, "_why_dropped", lambda self, message: "")
    patch.setattr(Inbox, "is_news", lambda self, incarnation, seq: True)


LATER: Plan = [(20.0, faults.kill(TRAINER)), (22.0, faults.say_again), (23.0, faults.say_again), (25.0, faults.cut)]
SEGFAULT = ProgramError(signal=11)
POISON = ProgramError("InvalidArgumentError", "NaN")

CASES: list[tuple[str, Break, dict[str, Any], Plan]] = [
    ("i1", _restarts_beside_the_old_tree, {"grandchild": True}, KILL_TRAINER),
    ("i2", _acknowledges_before_the_commit, {}, []),
    ("i2", _forgets_to_sync_the_directory, {}, []),
    ("i2", _deletes_before_the_new_one_is_in_place, {"max_to_keep": 1}, [(12.0, faults.kill_at_disk(CHECKPOINT))]),
    ("i3", _resumes_from_the_oldest, {"save_secs": 2.0}, [(15.0, faults.lose_power)]),
    ("i3", _begins_again_where_nothing_is_good, {}, [(12.0, faults.spoil_all), (12.0, faults.lose_power)]),
    ("i4", _writes_a_batch_that_is_said_again, {}, [(8.0, faults.bad_network), (12.0, faults.kill(SUMMARY))]),
    ("i5", _quits_before_the_services_have_ended, {}, []),
    ("i6", _says_the_wrong_cause, {}, KILL_TRAINER),
    ("i7", _never_answers_restore, {}, []),
    ("i8", _gives_up_one_failure_late, {"poison": {9: SEGFAULT}}, []),
    ("i8", _gives_up_one_failure_early, {"poison": {9: SEGFAULT}}, []),
    ("i8", _never_calls_a_failure_deterministic, {"poison": {20: POISON}}, []),
    ("i9", _kills_the_trainer_with_the_service, {}, KILL_CHECKPOINT),
    ("i10", _does_not_answer_status, {}, []),
    ("i10", _says_an_old_pid, {}, KILL_TRAINER),
    ("i11", _trains_something_else, {}, []),
    ("i19", _publishes_the_first_bytes_again, {"snapshot_s": 50.0}, []),
    ("i19", _counts_what_others_have_saved, {"restores": False}, KILL_TRAINER),
    ("i12", _hears_the_dead, {}, LATER),
    ("i12", _believes_the_dead, {}, LATER),
]


@pytest.mark.parametrize(
    ("name", "breaks", "program", "plan"), CASES, ids=[f"{name}{breaks.__name__}" for name, breaks, _, _ in CASES]
)
def test_a_broken_invariant_is_reported(
    name: str, breaks: Break, program: dict[str, Any], plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    assert_reported(f"{name}_", lambda seed: Run(seed, Program(**program), list(plan)).go(), SEEDS_MAX)


@pytest.mark.parametrize(
    ("program", "plan"), [case[2:] for case in CASES], ids=[f"{n}-{c[0]}" for n, c in enumerate(CASES)]
)
def test_without_the_break_the_same_runs_keep_every_invariant(program: dict[str, Any], plan: Plan) -> None:
    for seed in range(3):
        assert Run(seed, Program(**program), list(plan)).go().exit_code is not None
