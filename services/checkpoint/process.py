"""Run the checkpoint service: connect messages, threads and slots to the core, which decides.

`python -m procsv.services.checkpoint` runs it.  Only the main thread talks to peers.  Three
worker threads read and write the checkpoints:

* The disk thread writes checkpoints, one job at a time and at a lower priority than training.
* The checker verifies the checksums of slots and scans the directory, so that a restore from memory
  never waits for a save.
* The examiner reads external checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from procsv.base.cluster import WORKER
from procsv.base.identity import COMMAND_LINE, TaskId
from procsv.base.system import progress_counter
from procsv.base.system.failpoints import declare, failpoint
from procsv.base.system.processes import ExternalProcess
from procsv.ipc.messaging.checkpoint_messages import (
    CheckpointPlan,
    Durable,
    FilePlaced,
    PlaceFile,
    Rejected,
    Restore,
    Restored,
    Snapshot,
    Staged,
    Unwritable,
)
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.messaging.member_messages import AskSnapshot
from procsv.ipc.messaging.messages import Hello
from procsv.ipc.messaging.watchdog_messages import Finish, TrainerExited
from procsv.ipc.shm.heartbeat import Phase
from procsv.services.checkpoint.core import actions
from procsv.services.checkpoint.core.actions import Action
from procsv.services.checkpoint.core.core import CheckpointCore
from procsv.services.checkpoint.core.facts import AdoptionResult, FoundCheckpoint, SavableState, Sighting, Verified
from procsv.services.checkpoint.environment import CheckpointEnvironment
from procsv.services.checkpoint.file_orders import FileOrders
from procsv.services.checkpoint.orphan_shutdown import OrphanShutdown
from procsv.services.checkpoint.state_offers import MirrorSource, StateOffers
from procsv.services.checkpoint.store.checkpoint_store import SlotBad, SlotGone
from procsv.services.checkpoint.worker import Outcomes, Worker
from procsv.services.runtime import TICK_S_MAX, Tools

T = TypeVar("T")
# The disk thread's niceness.  Training comes first.  But a save costs the same processor time at any niceness, and it
# holds a slot until it ends.  With two busy threads on two cores, saving 800 MB takes 1.7 s at niceness 0, 5 s at 5,
# and 15 s at 10.  So 10 would hold a slot for too long.
NICENESS = 5
NICENESS_EXAMINING = 10  # of the thread that reads external checkpoints; nothing waits for it
OF_THE_CHIEF = (CheckpointPlan, Snapshot, Staged, Restored)  # only the task whose state is saved may send these
REJECTED_MAX = 100  # how many rejections are announced again to peers that connect later
FINISH_ACK_S_MAX = 2.0  # how long to wait at the end for the watchdog to acknowledge our answer to Finish

declare("checkpoint.start", "checkpoint.receive", "checkpoint.before_ack", "checkpoint.serving_restore")


class CheckpointService:
    """The procsv.services.runtime.Service that saves and restores checkpoints."""

    def __init__(self, tools: Tools, environment: CheckpointEnvironment | None = None) -> None:
        failpoint("checkpoint.start")
        self._tools = tools
        self._environment = environment or CheckpointEnvironment(tools.start, tools.clock)
        self._store = self._environment.store()
        self._outcomes = Outcomes(tools.wake)
        self._disk = self._environment.worker("disk", self._outcomes, NICENESS)
        self._checker = self._environment.worker("checker", self._outcomes)
        self._examiner = self._environment.worker("examiner", self._outcomes, NICENESS_EXAMINING)
        self._watch = self._environment.watch_directory(self._on_change)
        self._is_change_posted = False
        self._has_read = False  # whether the slots were read since the last tick
        start = tools.start
        followers = sum(task.role == WORKER and task != start.chief for task in start.settings.tasks)
        lineage, is_restarted = self._store.lineage(), start.incarnation > 1
        is_local = start.has_local_logdir
        self._core = CheckpointCore(start.run, start.chief, lineage, is_restarted, followers, is_local=is_local)
        self._orphan_shutdown: OrphanShutdown | None = None
        self._trainers: dict[tuple[TaskId, int], ExternalProcess] = {}  # by task and incarnation
        self._newest_trainer = 0
        self._said: dict[bool, Durable] = {}  # last announced; key: whether procsv wrote it (sequence > 0)
        self._rejected: list[Rejected] = []  # announced rejections, for peers that connect later
        self._unwritable = Unwritable("")  # the last announcement about the directory
        self._finish: Received | None = None  # the watchdog's Finish
        self._finished_by_s = 0.0  # until when to wait for an acknowledgement of our answer; 0: not answered
        self._disk.run_job(_untracked(self._store.open), lambda _: None, lambda _: None)
        self._offers = StateOffers(self._environment)
        self._mirror = MirrorSource(start.run, start.chief, tools.server, self._offers)
        self._files = FileOrders(self._environment, self._disk, self._reply_placed)
        for staged in self._environment.staged():
            self._core.states.take_staged(staged)
        self._read_slots()

    # -- callbacks from services.runtime ----------------------------------------------------------------------
    def handle_message(self, received: Received) -> None:
        now_s = self._tools.clock.monotonic()
        if isinstance(received.body, OF_THE_CHIEF) and received.task != self._tools.start.chief:
            self._tools.server.count_breach(
                f"{type(received.body).__name__} from {received.task}, whose state is not saved"
            )
            self._tools.server.acknowledge(received)  # otherwise the peer would repeat it once a second
            return
        self._read_slots()
        self._has_read = True
        match received.body:
            case Hello():
                self._on_hello(received, received.body)
            case Finish():
                self._finish = received
                self._perform(self._core.finish_run(received, now_s))
            case PlaceFile():
                self._files.place(received, received.body)
            case AskSnapshot():
                self._mirror.take_question(received, received.body)
                self._read_slots()
            case TrainerExited():
                task, newest = received.body.task, received.body.incarnation
                self._tools.server.forget(task, newest)
                for dead in [key for key in self._trainers if key[0] == task and key[1] <= newest]:
                    self._trainers.pop(dead).close()
                self._perform(self._core.handle_message(received, now_s))
            case Restore() if received.task != self._tools.start.chief:
                self._drop_answer_of_dead_chief()
                self._perform(self._core.handle_message(received, now_s))
            case body:
                if isinstance(body, CheckpointPlan):
                    self._environment.keep_plan(body)
                elif isinstance(body, (Snapshot, Staged)):
                    failpoint("checkpoint.receive")
                self._perform(self._core.handle_message(received, now_s))

    def _drop_answer_of_dead_chief(self) -> None:
        """Forgets the answer to the last chief's Restore, if that chief is dead.

        The other tasks of a gang get the answer that their chief got.  A task of the next generation
        may ask before the watchdog reports the chief's death.  It must not get the old answer,
        because a newer state may exist by now.
        """
        attempt = self._core.followers.answered_attempt
        chief = self._trainers.get((self._tools.start.chief, attempt))
        if chief is not None and chief.has_ended():
            self._core.followers.chief_ended(attempt)

    def tick(self, now_s: float) -> float:
        self._outcomes.deliver()
        if not self._has_read:  # a message or a job's result since the last tick has not read them yet
            self._read_slots()
        self._has_read = False
        self._environment.restore_plan()
        self._perform(self._core.tick(now_s))
        if self._orphan_shutdown is not None:
            self._orphan_shutdown.renew_lease(now_s, self._tools.clock.wall())
            if self._orphan_shutdown.may_finish(now_s):
                self._perform(self._core.finish_run(None, now_s))
        self._files.retry(now_s, is_last=self._core.waiting.settled)
        self._beat()
        if self._core.waiting.settled and not self._finished_by_s:
            self._finished_by_s = now_s + FINISH_ACK_S_MAX
        if self._orphan_shutdown is not None:
            return self._orphan_shutdown.look_again_s
        return max(0.0, min(TICK_S_MAX, self._core.next_due_s() - now_s))

    def orphaned(self) -> None:
        now_s = self._tools.clock.monotonic()
        self._orphan_shutdown = self._environment.orphan_shutdown(list(self._trainers.values()), now_s)

    def is_finished(self) -> bool:
        if not self._core.waiting.settled or self._files.is_busy:
            return False
        now_s = self._tools.clock.monotonic()
        if self._orphan_shutdown is not None:
            return self._orphan_shutdown.is_alone(now_s)
        is_heard = self._finish is None or not self._tools.server.unacknowledged(self._finish.task)
        return is_heard or now_s >= self._finished_by_s > 0

    def close(self) -> None:
        self._watch.close()
        self._offers.close()
        for worker in (self._disk, self._checker, self._examiner):
            worker.close()
        for trainer in self._trainers.values():
            trainer.close()
        if self._orphan_shutdown is not None:
            self._orphan_shutdown.tidy(
                keep_memory=self._core.states.unsaved is not None, now_wall_s=self._tools.clock.wall()
            )

    def _reply_placed(self, to: Received, body: FilePlaced) -> None:
        self._act(actions.Reply(to, body))

    # -- the directory ----------------------------------------------------------------------------------------
    def _on_change(self) -> None:
        """Passes one hint at a time to the main thread.  Runs on the file watcher's thread."""
        if not self._is_change_posted:
            self._is_change_posted = True
            self._outcomes.post(self._changed)

    def _changed(self) -> None:
        self._is_change_posted = False
        self._perform(self._core.changed(self._tools.clock.monotonic()))

    # -- events -----------------------------------------------------------------------------------------------
    def _read_slots(self) -> None:
        """Tells the core which slots exist, and answers an open AskSnapshot.

        Until a trainer has sent its plan, this also gives the core a plan. It takes the plan in the
        newest unsaved slot, or the stored plan if there is no such slot.
        """
        slots = self._environment.slots()
        self._core.slots_seen(slots)
        self._mirror.answer_question(slots)
        newest = self._core.states.unsaved
        if self._core.directory.plan is None:
            slot = newest.slot if newest is not None else None
            plan = self._environment.plan_in(slot) if slot is not None else self._environment.kept_plan()
            if plan is not None:
                self._perform(self._core.plan_seen(plan, self._tools.clock.monotonic()))

    def _on_hello(self, received: Received, hello: Hello) -> None:
        known = self._trainers.get((received.task, received.incarnation))
        if received.task.runs_program and (known is None or known.pid != hello.pid):
            if known is not None:
                known.close()
            self._newest_trainer = max(self._newest_trainer, received.incarnation)
            self._trainers[received.task, received.incarnation] = self._environment.external_process(hello.pid)
        self._tools.server.acknowledge(received)
        if received.task != COMMAND_LINE:
            for said in self._said.values():
                self._tools.server.send_reliable(received.who, said)  # the peer may have missed the announcement
            for rejected in self._rejected:
                self._tools.server.send_reliable(received.who, rejected)
            if self._unwritable.error:
                self._tools.server.send_reliable(received.who, self._unwritable)

    def _beat(self) -> None:
        heartbeat = self._tools.heartbeat
        heartbeat.phase = Phase.SAVE if self._core.saving.current is not None else Phase.IDLE
        heartbeat.work = self._core.durable_count
        heartbeat.step = self._core.states.newest_step
        # `moved` is 1 plus the progress that the running jobs have counted.  It is 0 if no job runs, if a running job
        # cannot show progress, or if the logdir is not local.
        is_busy = any(worker.is_busy for worker in (self._disk, self._checker, self._examiner))
        made = progress_counter.value() if is_busy and self._tools.start.has_local_logdir else None
        heartbeat.moved = 0 if made is None else made + 1

    # -- actions ----------------------------------------------------------------------------------------------
    def _perform(self, wanted: list[Action]) -> None:
        for action in wanted:
            self._act(action)

    def _act(self, action: Action) -> None:
        server = self._tools.server
        match action:
            case actions.Acknowledge(to):
                if to.who in server.peers:
                    server.acknowledge(to)
            case actions.Reply(to, body):
                if to.who in server.peers:  # if not, the asker is dead
                    server.send_reliable(to.who, body, re=to.seq)
            case actions.Offer(to, body):
                self._act(actions.Reply(to, replace(body, offer=self._offers.make(body))))
            case actions.Announce(body):
                if isinstance(body, Durable):
                    self._said[bool(body.sequence)] = body
                elif isinstance(body, Rejected) and len(self._rejected) < REJECTED_MAX:
                    self._rejected.append(body)
                elif isinstance(body, Unwritable):
                    self._unwritable = body
                server.broadcast(body)
            case actions.Persist():
                self._persist(action)
            case actions.ListCheckpoints(plan):
                self._run_job(
                    self._disk, lambda: self._store.list_checkpoints(plan), self._core.stocked, self._search_failed
                )
            case actions.Find(plan, before):
                self._run_job(
                    self._disk, lambda: self._find_checkpoint(plan, before), self._core.found, self._search_failed
                )
            case actions.VerifySlot(state):
                self._verify(state)
            case actions.ScanDirectory(plan):
                self._run_job(
                    self._checker,
                    lambda: self._environment.scan_directory(plan, self._watch),
                    self._core.scanned,
                    lambda error, now_s: self._core.scan_failed(_text(error), now_s),
                )
            case actions.Examine(sighting):
                self._examine(sighting)
            case actions.Adopt(examined, own, plan):
                incarnation = self._newest_trainer
                self._run_job(
                    self._disk,
                    lambda: self._store.adopt_checkpoint(plan, examined, own, incarnation),
                    self._core.adopted,
                    # Report that nothing was adopted, so that the core tries it again.
                    lambda _, now_s: self._core.adopted(AdoptionResult(examined, own, None), now_s),
                )
            case actions.MakeOwn(path, plan):  # if it fails, the checkpoint stays external, so it is never deleted
                self._disk.run_job(_untracked(lambda: self._store.make_own(plan, path)), lambda _: None, lambda _: None)
            case actions.Release():
                self._disk.run_job(self._store.release, lambda _: None, lambda _: None)
            case actions.Retire(slot):
                self._environment.remove_slot(slot)
            case actions.RemoveStaged(state):
                self._environment.remove_staged(state.staged)

    def _persist(self, action: actions.Persist) -> None:
        state = action.state
        self._beat()

        def job() -> Durable:
            durable = self._store.persist(state, action.reason, action.plan)
            # Killed here: the checkpoint is durable but not announced; the next service finds it on disk.
            failpoint("checkpoint.before_ack")
            return durable

        def failed(error: Exception, now_s: float) -> list[Action]:
            if isinstance(error, (SlotGone, SlotBad)):
                return self._core.save_lost(state, str(error), isinstance(error, SlotBad), now_s)
            return self._core.save_failed(_text(error), now_s)

        self._run_job(self._disk, job, self._core.saved, failed, shows_progress=True)

    def _find_checkpoint(self, plan: CheckpointPlan, before: int) -> FoundCheckpoint:
        found = self._store.find_checkpoint(plan, before)
        failpoint("checkpoint.serving_restore")
        return found

    def _verify(self, state: SavableState) -> None:
        assert state.slot is not None, "staged files are not verified in memory"
        slot = state.slot

        def job() -> SavableState:
            self._store.verify_slot(slot)
            failpoint("checkpoint.serving_restore")
            return state

        def failed(error: Exception, now_s: float) -> list[Action]:
            return self._core.verify_lost(state, _text(error), not isinstance(error, SlotGone), now_s)

        self._run_job(self._checker, job, self._core.slot_verified, failed, shows_progress=True)

    def _examine(self, sighting: Sighting) -> None:
        def failed(error: Exception, now_s: float) -> list[Action]:
            examined = Verified(
                path=sighting.path,
                signature=sighting.signature,
                step=-1,
                files={},
                time=sighting.time,
                seconds=0.0,
                error=_text(error),
            )
            return self._core.examined(examined, now_s)

        self._run_job(
            self._examiner,
            lambda: self._environment.examine(sighting),
            self._core.examined,
            failed,
            shows_progress=True,
        )

    def _search_failed(self, error: Exception, now_s: float) -> list[Action]:
        return self._core.search_failed(_text(error), now_s)

    def _run_job(
        self,
        worker: Worker,
        job: Callable[[], T],
        then: Callable[[T, float], list[Action]],
        failed: Callable[[Exception, float], list[Action]],
        shows_progress: bool = False,
    ) -> None:
        """Runs `job` on a thread.  Then passes the present slots and the result to the core."""

        def report(event: Callable[[Any, float], list[Action]], outcome: object) -> None:
            self._read_slots()
            self._has_read = True
            self._perform(event(outcome, self._tools.clock.monotonic()))

        job = job if shows_progress else _untracked(job)
        worker.run_job(job, lambda result: report(then, result), lambda error: report(failed, error))


def _untracked(job: Callable[[], T]) -> Callable[[], T]:
    """Wraps a job that mostly waits for a disk or the network, and so cannot show progress.

    While it runs, the heartbeat reports no progress count (`moved` is 0).
    """

    def run() -> T:
        with progress_counter.untracked():
            return job()

    return run


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
