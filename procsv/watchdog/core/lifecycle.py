"""The life of a trainer as the watchdog sees it: one table, from (state, event) to (state, actions).

Used by trainer.py, which feeds it and carries its actions out.  Pure: no clock, no process, no socket.  A missing row is a
bug and raises with the story so far; "nothing to do" is a row.

    PENDING      its process is asked for, and says nothing yet
    IMPORTING    the program's imports run
    CONNECTED    it has introduced itself
    RESTORING    it loads the state it goes on from
    COMPILING    from the restored session to the end of the first step
    RUNNING      it trains
    HUNG         found hanging; its stacks are written down, then it is ended
    STALLED      found hanging in a program that is only observed: it is reported, and left alone
    RECYCLING    asked to save and end, to be started again, free of charge
    STOPPING     asked to stop at the next boundary
    BACKOFF      dead; waiting for its tree to be gone, and for its delay, before the next start
    UNKILLABLE   killed, and still there: nothing else may write to the logdir
    DONE         finished on purpose                    (terminal)
    STOPPED      ended because the run was to end       (terminal)
    FAILED       will not be started again              (terminal)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from procsv.base.errors import ProcsvBug

if TYPE_CHECKING:
    from collections.abc import Mapping

STORY_STEPS_MAX = 40  # the newest are kept for the error


class State(Enum):
    PENDING = auto()
    IMPORTING = auto()
    CONNECTED = auto()
    RESTORING = auto()
    COMPILING = auto()
    RUNNING = auto()
    HUNG = auto()
    STALLED = auto()
    RECYCLING = auto()
    STOPPING = auto()
    BACKOFF = auto()
    UNKILLABLE = auto()
    DONE = auto()
    STOPPED = auto()
    FAILED = auto()

    @property
    def word(self) -> str:
        """As run.json and `status` show it."""
        return "hung" if self is State.STALLED else self.name.lower()


class LifecycleEvent(Enum):
    # what its heartbeat and its messages say
    IMPORTS = auto()
    HELLO = auto()
    CONNECTS = auto()  # the bootstrap is done, and so is the connection, or nearly so
    RESTORES = auto()
    COMPILES = auto()
    STEPS = auto()
    READY = auto()  # the first step after the restore has ended
    # what its death says
    FINISHED = auto()  # exit 0
    CHECKPOINTED = auto()  # exit 75: start me again
    CRASHED = auto()  # anything else
    NOT_SPAWNED = auto()  # the system would not start it
    # what the watchdog decides
    HANGS = auto()  # no progress for longer than its phase may take
    STALLS = auto()  # the same, of a program that is only observed
    MOVES = auto()  # what had stalled makes progress again
    STOP_ASKED = auto()
    KILL_ASKED = auto()  # stop now, or the grace is over
    RECYCLE_ASKED = auto()  # by hand, or because it uses too much memory
    RECYCLE_LATE = auto()  # it did not end in time
    GAVE_UP = auto()
    DELAY_OVER = auto()  # and the old tree is gone
    TREE_STAYS = auto()  # killed long ago, and still there
    TREE_GONE = auto()


class LifecycleAction(Enum):
    SPAWN = auto()
    DUMP_STACKS = auto()  # the first rung of the hang ladder
    REPORT_HANG = auto()
    REPORT_PROGRESS = auto()
    TELL_STOP = auto()
    KILL_TREE = auto()
    CLEAN_UP = auto()  # clear away its tree; tell the checkpoint service, which saves what it left
    DECIDE_RESTART = auto()  # restart, or give up?
    ALERT = auto()
    END_RUN = auto()


@dataclass(frozen=True, slots=True)
class Edge:
    to: State
    do: tuple[LifecycleAction, ...] = ()


_S, _E, _A = State, LifecycleEvent, LifecycleAction

LIVE = (_S.PENDING, _S.IMPORTING, _S.CONNECTED, _S.RESTORING, _S.COMPILING, _S.RUNNING)
TERMINAL = (_S.DONE, _S.STOPPED, _S.FAILED)
_NEWS = (_E.IMPORTS, _E.HELLO, _E.CONNECTS, _E.RESTORES, _E.COMPILES, _E.STEPS, _E.READY)
_DEATHS = (_E.FINISHED, _E.CHECKPOINTED, _E.CRASHED, _E.NOT_SPAWNED)


def _table() -> dict[tuple[State, LifecycleEvent], Edge]:
    table: dict[tuple[State, LifecycleEvent], Edge] = {}
    for state in LIVE:
        # A program may open several sessions, one after the other: phases may come back.
        table[state, _E.RESTORES] = Edge(_S.RESTORING)
        table[state, _E.COMPILES] = Edge(_S.COMPILING)
        table[state, _E.STEPS] = Edge(_S.RUNNING)
        table[state, _E.READY] = Edge(_S.RUNNING)
        # Imports and the introduction happen once and at the same time: they never lead back.
        table[state, _E.IMPORTS] = Edge(_S.IMPORTING if state is _S.PENDING else state)
        early = state in (_S.PENDING, _S.IMPORTING)
        table[state, _E.HELLO] = table[state, _E.CONNECTS] = Edge(_S.CONNECTED if early else state)

        table[state, _E.FINISHED] = Edge(_S.DONE, (_A.CLEAN_UP, _A.END_RUN))
        table[state, _E.CHECKPOINTED] = Edge(_S.BACKOFF, (_A.CLEAN_UP, _A.DECIDE_RESTART))
        table[state, _E.CRASHED] = Edge(_S.BACKOFF, (_A.CLEAN_UP, _A.DECIDE_RESTART))
        table[state, _E.STOP_ASKED] = Edge(_S.STOPPING, (_A.TELL_STOP,))
        table[state, _E.KILL_ASKED] = Edge(_S.STOPPING, (_A.KILL_TREE,))
        table[state, _E.RECYCLE_ASKED] = Edge(_S.RECYCLING, (_A.TELL_STOP,))
        table[state, _E.HANGS] = Edge(_S.HUNG, (_A.DUMP_STACKS,))
        table[state, _E.STALLS] = Edge(_S.STALLED, (_A.REPORT_HANG,))
    table[_S.PENDING, _E.NOT_SPAWNED] = Edge(_S.BACKOFF, (_A.DECIDE_RESTART,))  # there is nobody to bury

    table[_S.HUNG, _E.FINISHED] = Edge(_S.DONE, (_A.CLEAN_UP, _A.END_RUN))
    table[_S.HUNG, _E.CHECKPOINTED] = table[_S.HUNG, _E.CRASHED] = Edge(_S.BACKOFF, (_A.CLEAN_UP, _A.DECIDE_RESTART))
    # It would not hear that it is to stop; what it had is in memory.
    table[_S.HUNG, _E.STOP_ASKED] = table[_S.HUNG, _E.KILL_ASKED] = Edge(_S.STOPPING, (_A.KILL_TREE,))
    table[_S.HUNG, _E.TREE_STAYS] = Edge(_S.UNKILLABLE, (_A.ALERT,))

    table[_S.HUNG, _E.RECYCLE_ASKED] = Edge(_S.HUNG)  # it is being ended already

    table[_S.STALLED, _E.MOVES] = Edge(_S.RUNNING, (_A.REPORT_PROGRESS,))  # its phase is read again at the next tick
    table[_S.STALLED, _E.FINISHED] = Edge(_S.DONE, (_A.CLEAN_UP, _A.END_RUN))
    table[_S.STALLED, _E.CHECKPOINTED] = table[_S.STALLED, _E.CRASHED] = Edge(
        _S.BACKOFF, (_A.CLEAN_UP, _A.DECIDE_RESTART)
    )
    table[_S.STALLED, _E.STOP_ASKED] = Edge(_S.STOPPING, (_A.TELL_STOP,))
    table[_S.STALLED, _E.KILL_ASKED] = Edge(_S.STOPPING, (_A.KILL_TREE,))

    table[_S.RECYCLING, _E.FINISHED] = Edge(_S.DONE, (_A.CLEAN_UP, _A.END_RUN))
    table[_S.RECYCLING, _E.CHECKPOINTED] = table[_S.RECYCLING, _E.CRASHED] = Edge(
        _S.BACKOFF, (_A.CLEAN_UP, _A.DECIDE_RESTART)
    )
    table[_S.RECYCLING, _E.STOP_ASKED] = Edge(_S.STOPPING, (_A.TELL_STOP,))
    table[_S.RECYCLING, _E.KILL_ASKED] = Edge(_S.STOPPING, (_A.KILL_TREE,))
    table[_S.RECYCLING, _E.RECYCLE_ASKED] = Edge(_S.RECYCLING)
    table[_S.RECYCLING, _E.RECYCLE_LATE] = Edge(_S.RECYCLING, (_A.KILL_TREE,))
    table[_S.RECYCLING, _E.TREE_STAYS] = Edge(_S.UNKILLABLE, (_A.ALERT,))

    for news in _NEWS:
        table[_S.HUNG, news] = Edge(_S.HUNG)
        table[_S.STALLED, news] = Edge(_S.STALLED)
        table[_S.RECYCLING, news] = Edge(_S.RECYCLING)
        table[_S.STOPPING, news] = Edge(_S.STOPPING)
        table[_S.UNKILLABLE, news] = Edge(_S.UNKILLABLE)
    for state in (_S.RECYCLING, _S.STOPPING):
        table[state, _E.HELLO] = Edge(state, (_A.TELL_STOP,))  # asked before it could hear
    table[_S.STOPPING, _E.RECYCLE_ASKED] = Edge(_S.STOPPING)
    for death in (_E.FINISHED, _E.CHECKPOINTED, _E.CRASHED):
        table[_S.STOPPING, death] = Edge(_S.STOPPED, (_A.CLEAN_UP, _A.END_RUN))
        table[_S.UNKILLABLE, death] = Edge(
            _S.BACKOFF, (_A.CLEAN_UP, _A.DECIDE_RESTART)
        )  # after all; a run that ends does not weigh
    table[_S.STOPPING, _E.STOP_ASKED] = Edge(_S.STOPPING)
    table[_S.STOPPING, _E.KILL_ASKED] = Edge(_S.STOPPING, (_A.KILL_TREE,))
    table[_S.STOPPING, _E.TREE_STAYS] = Edge(_S.UNKILLABLE, (_A.ALERT, _A.END_RUN))

    table[_S.BACKOFF, _E.DELAY_OVER] = Edge(_S.PENDING, (_A.SPAWN,))
    table[_S.BACKOFF, _E.GAVE_UP] = Edge(_S.FAILED, (_A.END_RUN,))
    table[_S.BACKOFF, _E.RECYCLE_ASKED] = Edge(_S.BACKOFF)  # it is started again in any case
    table[_S.UNKILLABLE, _E.RECYCLE_ASKED] = Edge(_S.UNKILLABLE)
    table[_S.BACKOFF, _E.STOP_ASKED] = Edge(_S.STOPPED, (_A.END_RUN,))
    table[_S.BACKOFF, _E.KILL_ASKED] = Edge(_S.STOPPED, (_A.END_RUN,))
    table[_S.BACKOFF, _E.TREE_STAYS] = Edge(_S.UNKILLABLE, (_A.ALERT,))
    table[_S.BACKOFF, _E.TREE_GONE] = Edge(_S.BACKOFF)
    table[_S.UNKILLABLE, _E.TREE_GONE] = Edge(_S.BACKOFF)
    table[_S.UNKILLABLE, _E.TREE_STAYS] = Edge(_S.UNKILLABLE)
    table[_S.UNKILLABLE, _E.STOP_ASKED] = Edge(_S.UNKILLABLE, (_A.END_RUN,))
    table[_S.UNKILLABLE, _E.KILL_ASKED] = Edge(_S.UNKILLABLE, (_A.KILL_TREE, _A.END_RUN))
    table[_S.UNKILLABLE, _E.GAVE_UP] = Edge(_S.FAILED, (_A.END_RUN,))

    for state in TERMINAL:  # the end of a run takes a while, and people press keys
        table[state, _E.STOP_ASKED] = table[state, _E.KILL_ASKED] = table[state, _E.RECYCLE_ASKED] = Edge(state)
        table[state, _E.TREE_GONE] = Edge(state)
        table[state, _E.TREE_STAYS] = Edge(state, (_A.ALERT,))
    return table


TRANSITIONS: Mapping[tuple[State, LifecycleEvent], Edge] = _table()


class IllegalTransition(ProcsvBug):
    def __init__(self, state: State, event: LifecycleEvent, story: tuple[str, ...]) -> None:
        super().__init__(f"{event.name} in {state.name}; story: {' > '.join(story)}")
        self.state, self.event, self.story = state, event, story


class Lifecycle:
    """One task's trainer, through all its incarnations.  Events in, actions out."""

    def __init__(self) -> None:
        self.state = State.PENDING
        self._story: list[str] = [State.PENDING.name]

    def handle(self, event: LifecycleEvent, detail: str = "") -> tuple[LifecycleAction, ...]:
        """The actions that `event` leads to.  `detail` makes the story readable: an exit, a step."""
        edge = TRANSITIONS.get((self.state, event))
        if edge is None:
            raise IllegalTransition(self.state, event, tuple(self._story))
        if edge.to is not self.state or edge.do:
            told = f"{event.name}({detail})" if detail else event.name
            self._story = [*self._story[1 - STORY_STEPS_MAX :], f"{told} > {edge.to.name}"]
        self.state = edge.to
        return edge.do

    @property
    def story(self) -> tuple[str, ...]:
        return tuple(self._story)

    @property
    def is_live(self) -> bool:
        return self.state in LIVE

    @property
    def is_over(self) -> bool:
        return self.state in TERMINAL
