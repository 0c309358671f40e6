"""When is a snapshot saved, what is a new trainer to start from, and who is told?  Decisions only.

Called by the service's main loop (process.py) with whatever happened; returns what to do about it.  No clock, no file,
no socket inside: time is an argument, slots and files are what the events say they are.

One state is saved at a time.  Whatever is wanted (a trainer asks, the time has come, a trainer died, the run ends), it
is the newest READY snapshot that is saved, and it satisfies every older wish.  `durable` is the newest state that is
verified on disk; a state is *unsaved* if its sequence is higher.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from procsv.ipc.arena import SlotInfo
from procsv.ipc.channel import Heard
from procsv.ipc.messages import (
    Durable,
    Reason,
    Rejected,
    Restore,
    Restored,
    RestoreFrom,
    SaveFailed,
    SaverPlan,
    Settled,
    Snapshot,
    Staged,
    TrainerEnded,
)
from procsv.ipc.slots import SlotState
from procsv.services.checkpoint.actions import (
    Acknowledge,
    Action,
    Announce,
    Find,
    Persist,
    Release,
    RemoveStaged,
    Reply,
    Retire,
    TakeStock,
    VerifySlot,
)
from procsv.services.checkpoint.facts import Found, State, Stock

RETRY_S_MIN = 1.0  # after a failed save; doubles up to:
RETRY_S_MAX = 60.0
TRIES_AT_END_MAX = 3  # saves of the last state that may fail before the end of the run says so and goes on
# A trainer that cannot take its state from memory waits for so many tries to save it, then gets an older checkpoint.
TRIES_FOR_RESTORE_MAX = 3

_RANK: dict[Reason, int] = {"periodic": 0, "start": 1, "manual": 2, "crash": 3, "preempt": 4, "final": 5}


# -- what is remembered --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Want:
    asker: Heard
    sequence: int
    step: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class _Ending:
    """Somebody waits for Settled: after a trainer's death, or (`all_of_it`) at the end of the run."""

    asker: Heard | None  # None: ourselves
    incarnation: int
    reason: Reason
    all_of_it: bool


@dataclass(slots=True)
class _Restoring:
    asker: Heard
    durable_only: bool
    stage: str = "waiting"  # waiting, verifying, searching
    saves_failed: int = 0
    searched: Found | None = None


@dataclass(slots=True)
class Core:
    """The checkpoint service's mind."""

    run: str
    lineage: frozenset[str] = frozenset()  # runs before this one in this logdir: their snapshots count
    is_restarted: bool = False  # this service follows one that died: what it was asked for is done at once

    plan: SaverPlan | None = None
    durable: Durable | None = None
    durable_sequence: int = 0
    newest_step: int = -1  # of the newest checkpoint, as far as its manifest or name says
    kept: tuple[str, ...] = ()
    settled: bool = False  # the run is over and Settled has been said
    durable_count: int = 0

    _out: list[Action] = field(default_factory=list)
    _slots: tuple[SlotInfo, ...] = ()
    _staged: list[State] = field(default_factory=list)
    _bad: set[tuple[str, int]] = field(default_factory=set)
    _top_sequence: int = 0
    _is_stocked: bool = False
    _stock_again_s: float | None = None
    _saving: Persist | None = None
    _wants: list[_Want] = field(default_factory=list)
    _endings: list[_Ending] = field(default_factory=list)
    _is_finishing: bool = False
    _failures: int = 0
    _retry_s: float = 0.0
    _retry_reason: Reason | None = None
    _last_error: str = ""
    _cadence_from_s: float | None = None
    _restoring: _Restoring | None = None
    _searched_at: int = 0  # the durable sequence when the search began
    _verified: State | None = None  # the slot that was last read against its checksums, and good
    _verifying: set[State] = field(default_factory=set)
    _expects_question: bool = True  # a trainer is about to ask what to start from: the answer is prepared
    _served: str = ""  # the slot that a trainer was told to restore from, until it has
    _restored: int = 0  # highest incarnation of this run that has said Restored

    # -- what is seen -----------------------------------------------------------------------------------------
    def slots_seen(self, slots: Iterable[SlotInfo]) -> None:
        """The slots that are there now, in whatever state.  Said before every other event; decides nothing."""
        self._slots = tuple(slots)
        self._top_sequence = max([self._top_sequence, *(s.sequence for s in self._slots if self._is_ours(s.run))])

    def staged_seen(self, states: Iterable[State]) -> None:
        """Staged checkpoints that a service before this one was told of."""
        for state in states:
            self._take_staged(state)

    @property
    def is_saving(self) -> bool:
        return self._saving is not None

    @property
    def unsaved(self) -> State | None:
        """The newest state that is in memory and not on disk."""
        states = [s for s in self._states() if s.sequence > self.durable_sequence]
        return max(states, key=lambda s: s.sequence, default=None)

    def _is_ours(self, run: str) -> bool:
        return run == self.run or run in self.lineage

    def _states(self) -> list[State]:
        ready = [info for info in self._slots if info.state is SlotState.READY and self._is_ours(info.run)]
        slots = [State.of_slot(info) for info in ready]
        return [s for s in [*slots, *self._staged] if (s.name, s.sequence) not in self._bad]

    def _newest_slot(self) -> State | None:
        return max((s for s in self._states() if s.slot is not None), key=lambda s: s.sequence, default=None)

    # -- messages ---------------------------------------------------------------------------------------------
    def handle(self, asker: Heard, now_s: float) -> list[Action]:
        """A message, not Hello or Finish."""
        match asker.body:
            case SaverPlan() as plan:
                self._on_plan(plan, now_s)
                self._out.append(Acknowledge(asker))
            case Snapshot(_, sequence, step, want):
                self._top_sequence = max(self._top_sequence, sequence)
                self._on_want(asker, sequence, step, want)
            case Staged(prefix, sequence, step, want):
                self._take_staged(State(sequence, step, asker.incarnation, self.run, None, prefix))
                self._on_want(asker, sequence, step, want)
            case Restore(durable_only):
                # A restart of the same question (a session built anew) takes the place of the one before.
                self._restoring, self._served = _Restoring(asker, durable_only), ""
            case Restored():
                self._restored = max(self._restored, asker.incarnation)
                self._cadence_from_s, self._served = now_s, ""
                self._out += [Acknowledge(asker), Release()]
            case TrainerEnded(incarnation, clean):
                reason: Reason = "final" if clean else "crash"
                self._endings.append(_Ending(asker, incarnation, reason, all_of_it=False))
                self._retry_s, self._served = 0.0, ""
                self._expects_question = not clean
            case _:
                self._out.append(Acknowledge(asker))
        return self._decide(now_s)

    def finish(self, asker: Heard | None, now_s: float) -> list[Action]:
        """The run is over (`asker` None: because whoever ran it is dead)."""
        self._is_finishing = True
        self._failures = 0
        self._retry_s = 0.0
        reason: Reason = "final" if asker is not None else "crash"
        self._endings.append(_Ending(asker, -1, reason, all_of_it=True))
        return self._decide(now_s)

    def tick(self, now_s: float) -> list[Action]:
        """Time has passed."""
        return self._decide(now_s)

    def plan_seen(self, plan: SaverPlan, now_s: float) -> list[Action]:
        """The plan that a snapshot carries: good until a trainer says its own."""
        if self.plan is None:
            self._on_plan(plan, now_s)
        return self._decide(now_s)

    def _on_plan(self, plan: SaverPlan, now_s: float) -> None:
        if plan == self.plan:
            return
        if self.plan is not None and plan.save_path != self.plan.save_path:
            self.newest_step, self.kept = -1, ()
        self.plan = plan
        self._is_stocked = False
        if self._cadence_from_s is None:
            self._cadence_from_s = now_s
        self._out.append(TakeStock(plan))

    def _on_want(self, asker: Heard, sequence: int, step: int, want: str) -> None:
        """Without a wish the cadence decides.  With one, the answer is the acknowledgement: if this process dies before,
        the wish is said again to the next.
        """
        for reason in _RANK:
            if want == reason:
                self._wants.append(_Want(asker, sequence, step, reason))
                self._retry_s = 0.0  # asked for: tried now, whatever failed before
                return
        self._out.append(Acknowledge(asker))

    def _take_staged(self, state: State) -> None:
        self._top_sequence = max(self._top_sequence, state.sequence)
        if all(state.staged != other.staged for other in self._staged):
            self._staged.append(state)

    # -- what the jobs came to --------------------------------------------------------------------------------
    def stocked(self, stock: Stock, now_s: float) -> list[Action]:
        self._is_stocked = True
        self._top_sequence = max(self._top_sequence, stock.top_sequence)
        if self.durable is None or stock.newest_step > self.newest_step:
            self.newest_step = stock.newest_step
        if not self.kept:
            self.kept = stock.kept
        if stock.durable is not None and stock.durable.sequence > self.durable_sequence:
            self.durable, self.durable_sequence = stock.durable, stock.durable.sequence
        return self._decide(now_s)

    def looking_failed(self, error: str, now_s: float) -> list[Action]:
        """Neither `stocked` nor `found`: the directory could not be looked into."""
        if not self._is_stocked:
            self._stock_again_s = now_s + RETRY_S_MIN
        if self._restoring is not None and self._restoring.stage in ("waiting", "searching"):
            self._answer("checkpoint", "", -1, f"the checkpoints cannot be looked through: {error}")
        return self._decide(now_s)

    def saved(self, durable: Durable, now_s: float) -> list[Action]:
        """The running save has ended well."""
        if self._saving is not None and self._saving.state.slot is not None:
            self._verified = self._saving.state  # it was read whole to be written
        self._saving = None
        self.durable, self.kept = durable, durable.all_paths
        self.durable_sequence = max(self.durable_sequence, durable.sequence)
        self._top_sequence = max(self._top_sequence, durable.sequence)
        self.newest_step = durable.step
        self.durable_count += 1
        self._failures, self._retry_s, self._retry_reason, self._last_error = 0, 0.0, None, ""
        self._cadence_from_s = now_s
        if self._restoring is not None:
            self._restoring.searched = None  # there is a newer one now
        self._out.append(Announce(durable))
        return self._decide(now_s)

    def save_failed(self, error: str, now_s: float) -> list[Action]:
        """The running save has failed; the last good checkpoint stands."""
        assert self._saving is not None, "a save failed that was never begun"
        state, reason = self._saving.state, self._saving.reason
        self._saving, self._last_error = None, error
        self._retry_s = now_s + min(RETRY_S_MAX, RETRY_S_MIN * 2 ** min(self._failures, 10))
        self._failures += 1
        self._retry_reason = reason
        failed = SaveFailed(state.sequence, state.step, error)
        self._out.append(Announce(failed))
        for want in [w for w in self._wants if w.sequence <= state.sequence]:
            self._out.append(Reply(want.asker, failed))
            self._wants.remove(want)
        if self._restoring is not None:
            self._restoring.saves_failed += 1
        self._settle(after_failure=True)
        return self._decide(now_s)

    def save_lost(self, state: State, why: str, is_bad: bool, now_s: float) -> list[Action]:
        """The state that was to be saved could not be read: its slot holds a newer one, or (`is_bad`) is damaged."""
        assert self._saving is not None, "a save was lost that was never begun"
        self._retry_reason, self._saving = self._saving.reason, None
        return self._lose(state, why, is_bad, now_s)

    def verify_lost(self, state: State, why: str, is_bad: bool, now_s: float) -> list[Action]:
        """The state that was to be restored from could not be read, for the same reasons."""
        self._verifying.discard(state)
        if self._restoring is not None and self._restoring.stage == "verifying":
            self._restoring.stage = "waiting"
        return self._lose(state, why, is_bad, now_s)

    def _lose(self, state: State, why: str, is_bad: bool, now_s: float) -> list[Action]:
        is_news = (state.name, state.sequence) not in self._bad  # a save and a check may find the same
        if is_bad or state.slot is None:
            self._bad.add((state.name, state.sequence))
        if is_bad and is_news:
            self._out.append(Announce(Rejected(state.name, why)))
            self._last_error = why
        return self._decide(now_s)

    def slot_verified(self, state: State, now_s: float) -> list[Action]:
        """A slot may be restored from."""
        self._verifying.discard(state)
        self._verified = state
        if self._restoring is not None and self._restoring.stage == "verifying":
            self._restoring.stage = "waiting"  # answered, unless it is outdated in the meantime
        return self._decide(now_s)

    def found(self, found: Found, now_s: float) -> list[Action]:
        """The checkpoints have been looked through."""
        self._out += [Announce(Rejected(rejection.path, rejection.why)) for rejection in found.rejected]
        good = found.checkpoint
        if self._searched_at != self.durable_sequence:  # outdated by a save in the meantime
            if self._restoring is not None and self._restoring.stage == "searching":
                self._restoring.stage = "waiting"
            return self._decide(now_s)
        self.kept = found.kept
        if self.durable is not None and self.durable.path in {rejection.path for rejection in found.rejected}:
            self.durable, self.durable_sequence = None, good.sequence if good else 0  # so it is saved once more
        self.newest_step = good.step if good is not None else -1
        if self._restoring is not None and self._restoring.stage == "searching":
            self._restoring.stage, self._restoring.searched = "waiting", found
        return self._decide(now_s)

    # -- decisions --------------------------------------------------------------------------------------------
    def _decide(self, now_s: float) -> list[Action]:
        if self._stock_again_s is not None and now_s >= self._stock_again_s and self.plan is not None:
            self._stock_again_s = None
            self._out.append(TakeStock(self.plan))
        self._satisfy_wants()
        self._prepare_answer()
        self._restore()
        self._begin_save(now_s)
        self._settle(after_failure=False)
        self._clear_away()
        out, self._out = self._out, []
        return out

    def _satisfy_wants(self) -> None:
        """Answers wishes that a durable state fulfils, and those whose snapshot is nowhere any more."""
        newest = max((s.sequence for s in self._states()), default=0)
        for want in list(self._wants):
            if self.durable is not None and want.sequence <= self.durable_sequence:
                self._out.append(Reply(want.asker, self.durable))
            elif want.sequence > newest and self._saving is None:
                lost = SaveFailed(want.sequence, want.step, self._last_error or "the snapshot is gone")
                self._out.append(Reply(want.asker, lost))
            else:
                continue
            self._wants.remove(want)

    def _prepare_answer(self) -> None:
        """After a trainer's death, and at this service's start: reads the slot that will be asked for before it is."""
        slot = self._newest_slot() if self._expects_question else None
        if slot is not None:
            self._check(slot)
        self._expects_question = False

    def _check(self, slot: State) -> bool:
        """Whether a slot was verified; if not, that is under way."""
        if slot != self._verified and slot not in self._verifying:
            self._verifying.add(slot)
            self._out.append(VerifySlot(slot))
        return slot == self._verified

    def _restore(self) -> None:
        """Moves the trainer's question on: newest state first, memory before disk where both hold it."""
        asked = self._restoring
        if asked is None or asked.stage != "waiting" or self.plan is None or not self._is_stocked:
            return
        slot = self._newest_slot()
        staged = max((s for s in self._states() if s.slot is None), key=lambda s: s.sequence, default=None)
        newer_staged = staged is not None and (slot is None or staged.sequence > slot.sequence)
        if asked.durable_only or (newer_staged and self.unsaved is staged):
            if self.unsaved is not None and asked.saves_failed < TRIES_FOR_RESTORE_MAX:
                return  # first it is saved; then it is a checkpoint
            slot = None
        good = asked.searched.checkpoint if asked.searched is not None else None
        if slot is not None and slot.step >= self.newest_step:
            if self._check(slot):
                self._answer("memory", slot.name, slot.step, "")
            else:
                asked.stage = "verifying"
        elif asked.searched is None:
            asked.stage, self._searched_at = "searching", self.durable_sequence
            self._out.append(Find(self.plan))
        elif good is not None:
            self._answer("checkpoint", good.path, good.step, "")
        else:
            error = asked.searched.error
            self._answer("checkpoint" if error else "fresh", "", -1, error)

    def _answer(self, source: str, path: str, step: int, error: str) -> None:
        assert self._restoring is not None, "an answer without a question"
        assert source in ("memory", "checkpoint", "fresh"), source
        asker, self._restoring = self._restoring.asker, None
        self._served = path if source == "memory" else ""
        body = RestoreFrom(source, path, step, self._top_sequence, self.kept, error)  # type: ignore[arg-type]
        self._out.append(Reply(asker, body))

    def _begin_save(self, now_s: float) -> None:
        state = self.unsaved
        if self._saving is not None or state is None or now_s < self._retry_s:
            return
        if self.plan is None or not self._is_stocked:
            return  # what is on disk already is about to be known
        reason = self._reason(state, now_s)
        if reason is None:
            return
        self._saving = Persist(state, reason, self.plan)
        self._out.append(self._saving)

    def _reason(self, state: State, now_s: float) -> Reason | None:
        """Why `state` is to be saved now, or None if it is not."""
        reasons: list[Reason] = [want.reason for want in self._wants]
        reasons += [ending.reason for ending in self._endings]
        if self._retry_reason is not None:
            reasons.append(self._retry_reason)
        if self._restoring is not None or state.run != self.run or state.incarnation < self._restored:
            reasons.append("crash")  # left by a trainer that is no more
        if self.is_restarted:
            self.is_restarted = False
            reasons.append("periodic")
        if not self._is_finishing and now_s >= self._cadence_due_s():
            reasons.append("periodic")
        return max(reasons, key=_RANK.__getitem__, default=None)

    def _settle(self, after_failure: bool) -> None:
        """Answers who waits for a trainer's last state to be on disk."""
        for ending in list(self._endings):
            state = self.unsaved
            mine = state is not None and (ending.all_of_it or state.incarnation <= ending.incarnation)
            if (mine or self._saving is not None) and not (after_failure and self._has_tried_enough(ending)):
                continue
            error = self._last_error if mine else ""
            step = self.durable.step if self.durable is not None else self.newest_step
            if ending.asker is not None:
                self._out.append(Reply(ending.asker, Settled(step, error)))
            self._endings.remove(ending)
            self.settled = self.settled or ending.all_of_it

    def _has_tried_enough(self, ending: _Ending) -> bool:
        """A trainer's end is told of the first failure, and the save is tried on; the run's end has to give up."""
        return self._failures >= (TRIES_AT_END_MAX if ending.all_of_it else 1)

    def _clear_away(self) -> None:
        """Removes what nobody needs: slots of trainers before the present one, once their state is on disk."""
        busy = self._saving.state if self._saving is not None else None
        for info in self._slots:
            if self._is_needed(info) or (busy is not None and busy.slot == info):
                continue
            self._out.append(Retire(info))
        newest = max((s.sequence for s in self._states()), default=0)
        for state in list(self._staged):
            if state != busy and (state.sequence <= self.durable_sequence or state.sequence < newest):
                self._staged.remove(state)
                self._out.append(RemoveStaged(state))

    def _is_needed(self, info: SlotInfo) -> bool:
        """Whether a slot is the present trainer's, or holds what is not on disk, or is being restored from."""
        if not self._is_ours(info.run):
            return False
        is_present = info.incarnation >= self._restored if info.run == self.run else not self._restored
        is_unsaved = info.state is SlotState.READY and info.sequence > self.durable_sequence
        return is_present or is_unsaved or self._restoring is not None or str(info.path) == self._served

    def _cadence_due_s(self) -> float:
        """When the next periodic checkpoint is due (monotonic)."""
        if self.plan is None or self.plan.save_secs <= 0 or self._cadence_from_s is None:
            return math.inf
        return self._cadence_from_s + self.plan.save_secs

    def next_due_s(self) -> float:
        """The monotonic time at which time alone changes something."""
        due_s = self._stock_again_s if self._stock_again_s is not None else math.inf
        if self._saving is None and self.unsaved is not None:
            due_s = min(due_s, self._retry_s if self._retry_reason else max(self._retry_s, self._cadence_due_s()))
        return due_s
