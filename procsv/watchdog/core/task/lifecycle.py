"""Define the trainer's lifecycle as one table, from (state, event) to (state, actions).

Used by trainer.py, which feeds it and carries out its actions. Pure: no clock, no process, no
socket. A missing row is a bug, and raises IllegalTransition. "Nothing to do" is a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

import msgspec

from procsv.base.errors import ProcsvBug
from procsv.watchdog.core.actions import Action

STORY_STEPS_MAX = 40  # how many transitions are kept for the text of IllegalTransition


class TaskState(Enum):
    PENDING = auto()  # its start was ordered; its process has reported nothing yet
    IMPORTING = auto()  # the program's imports are running
    CONNECTED = auto()  # it has sent its Hello, asked for its session, or begun to serve
    RESTORING = auto()  # it loads the state that it resumes from
    COMPILING = auto()  # its session is restored, and its first step has not ended
    RUNNING = auto()  # it trains
    HUNG = auto()  # its stacks are dumped, then it is ended
    STALLED = auto()  # an observed program hangs: reported and left alone
    RECYCLING = auto()  # asked to save and end for a restart that does not count as a failure
    STOPPING = auto()  # asked to stop at the next boundary
    # No attempt runs. The next start waits until the old process tree is gone and the delay is over. A first start that
    # waits for the standby waits here, too.
    BACKOFF = auto()
    UNKILLABLE = auto()  # killed, but still there, so nothing else may write to the logdir
    DONE = auto()  # (terminal, unless its gang restarts) finished by itself
    STOPPED = auto()  # (terminal) ended because the run ends
    FAILED = auto()  # (terminal) will not be restarted

    @property
    def word(self) -> str:
        """The state as run.json and `status` show it."""
        return "hung" if self is TaskState.STALLED else self.name.lower()


class LifecycleEvent(Enum):
    # from its heartbeat and its messages
    IMPORTS = auto()
    HELLO = auto()
    CONNECTS = auto()  # it asks for its session, or begins to serve
    RESTORES = auto()
    COMPILES = auto()
    STEPS = auto()
    READY = auto()  # the first step after the restore has ended
    # from its death
    FINISHED = auto()  # exit 0
    COMPLETED = auto()  # exit 0, and the program had ended before it was asked to stop
    CHECKPOINTED = auto()  # exit 75: "restart me"
    CRASHED = auto()  # anything else
    NOT_STARTED = auto()  # there is no process: see events.NotStarted
    AWAITS_STANDBY = auto()  # the run begins, and the first start waits for the host's standby
    # from the watchdog's decisions
    HANGS = auto()  # no progress for longer than its phase may take
    STALLS = auto()  # the same as HANGS, for an observed program
    MOVES = auto()  # a stalled program makes progress again
    STOP_ASKED = auto()
    KILL_ASKED = auto()  # it was asked to stop now, or its grace period is over
    RECYCLE_ASKED = auto()  # for example by a user, or because it uses too much memory
    RECYCLE_LATE = auto()  # it did not end in time after RECYCLE_ASKED
    GANG_BREAKS = auto()  # another member of its gang has ended, so it is ended, and restarts with the gang
    GAVE_UP = auto()
    DELAY_OVER = auto()  # the delay is over, and the old process tree is gone
    TREE_STAYS = auto()  # it was killed TREE_S_MAX ago, and some process of its tree is still there
    TREE_GONE = auto()


class LifecycleAction(Enum):
    SPAWN = auto()
    DUMP_STACKS = auto()  # start to end a hung process (hangs/escalation.py)
    REPORT_HANG = auto()
    REPORT_PROGRESS = auto()
    TELL_STOP = auto()
    KILL_TREE = auto()
    CLEAN_UP = auto()  # kill the rest of its process tree
    DECIDE_RESTART = auto()  # decide whether to restart or to give up
    ALERT = auto()
    END_RUN = auto()


class Edge(msgspec.Struct, frozen=True):
    to: TaskState
    do: tuple[LifecycleAction, ...] = ()


class Reaction(NamedTuple):
    """A part's answer to some news: the actions that it wants, and an event for the lifecycle."""

    wanted: list[Action]  # to carry out before the actions that the event leads to
    event: LifecycleEvent | None = None  # None: the lifecycle is not affected
    detail: str = ""  # for Lifecycle.handle


_S, _E, _A = TaskState, LifecycleEvent, LifecycleAction
_Rows = dict[LifecycleEvent, Edge]

LIVE = (_S.PENDING, _S.IMPORTING, _S.CONNECTED, _S.RESTORING, _S.COMPILING, _S.RUNNING)
TERMINAL = (_S.DONE, _S.STOPPED, _S.FAILED)
_NEWS = (_E.IMPORTS, _E.HELLO, _E.CONNECTS, _E.RESTORES, _E.COMPILES, _E.STEPS, _E.READY)
_DEATHS = (_E.FINISHED, _E.CHECKPOINTED, _E.CRASHED)

_STOP = Edge(_S.STOPPING, (_A.TELL_STOP,))
_KILL = Edge(_S.STOPPING, (_A.KILL_TREE,))
_BREAK = Edge(_S.RECYCLING, (_A.KILL_TREE,))
_STUCK = Edge(_S.UNKILLABLE, (_A.ALERT,))
_AGAIN = Edge(_S.BACKOFF, (_A.CLEAN_UP, _A.DECIDE_RESTART))
_DIES = {_E.FINISHED: Edge(_S.DONE, (_A.CLEAN_UP, _A.END_RUN)), _E.CHECKPOINTED: _AGAIN, _E.CRASHED: _AGAIN}


def _to_each(events: tuple[LifecycleEvent, ...], edge: Edge) -> _Rows:
    return dict.fromkeys(events, edge)


def _live_rows(state: TaskState) -> _Rows:
    connected = Edge(_S.CONNECTED if state in (_S.PENDING, _S.IMPORTING) else state)
    return {
        # Imports and the Hello come once each, in either order. They never lead back to an earlier state.
        _E.IMPORTS: Edge(_S.IMPORTING if state is _S.PENDING else state),
        _E.HELLO: connected,
        _E.CONNECTS: connected,
        # A program may open several sessions in sequence, so phases may recur.
        _E.RESTORES: Edge(_S.RESTORING),
        _E.COMPILES: Edge(_S.COMPILING),
        _E.STEPS: Edge(_S.RUNNING),
        _E.READY: Edge(_S.RUNNING),
        **_DIES,
        _E.STOP_ASKED: _STOP,
        _E.KILL_ASKED: _KILL,
        _E.RECYCLE_ASKED: Edge(_S.RECYCLING, (_A.TELL_STOP,)),
        _E.GANG_BREAKS: _BREAK,
        _E.HANGS: Edge(_S.HUNG, (_A.DUMP_STACKS,)),
        _E.STALLS: Edge(_S.STALLED, (_A.REPORT_HANG,)),
    }


_ROWS: dict[TaskState, _Rows] = {state: _live_rows(state) for state in LIVE} | {
    _S.HUNG: {
        **_to_each((*_NEWS, _E.RECYCLE_ASKED), Edge(_S.HUNG)),  # it is already being ended
        **_DIES,
        # A hung program would not act on a request to stop, so kill it. Its newest snapshot is in memory.
        _E.STOP_ASKED: _KILL,
        _E.KILL_ASKED: _KILL,
        _E.GANG_BREAKS: _BREAK,
        _E.TREE_STAYS: _STUCK,
    },
    _S.STALLED: {
        **_to_each(_NEWS, Edge(_S.STALLED)),
        **_DIES,
        _E.MOVES: Edge(_S.RUNNING, (_A.REPORT_PROGRESS,)),  # its phase is read again at the next tick
        _E.STOP_ASKED: _STOP,
        _E.KILL_ASKED: _KILL,
    },
    _S.RECYCLING: {
        **_to_each((*_NEWS, _E.RECYCLE_ASKED), Edge(_S.RECYCLING)),
        **_DIES,
        _E.HELLO: Edge(_S.RECYCLING, (_A.TELL_STOP,)),  # it missed a request that was sent before its Hello
        _E.STOP_ASKED: _STOP,
        _E.KILL_ASKED: _KILL,
        _E.RECYCLE_LATE: Edge(_S.RECYCLING, (_A.KILL_TREE,)),
        _E.GANG_BREAKS: _BREAK,  # kill it although it may be saving: the gang restarts from the newest snapshot
        _E.NOT_STARTED: Edge(_S.BACKOFF),  # it was asked to end before its host had started it
        _E.TREE_STAYS: _STUCK,
    },
    _S.STOPPING: {
        **_to_each((*_NEWS, _E.RECYCLE_ASKED, _E.STOP_ASKED), Edge(_S.STOPPING)),
        **_to_each(_DEATHS, Edge(_S.STOPPED, (_A.CLEAN_UP, _A.END_RUN))),
        _E.COMPLETED: Edge(_S.DONE, (_A.CLEAN_UP, _A.END_RUN)),
        _E.HELLO: _STOP,  # it missed a request that was sent before its Hello
        _E.KILL_ASKED: _KILL,
        _E.NOT_STARTED: Edge(_S.STOPPED, (_A.END_RUN,)),  # it was asked to end before its host had started it
        _E.TREE_STAYS: Edge(_S.UNKILLABLE, (_A.ALERT, _A.END_RUN)),
    },
    _S.BACKOFF: {
        # It is restarted in any case.
        **_to_each((_E.RECYCLE_ASKED, _E.TREE_GONE, _E.GANG_BREAKS), Edge(_S.BACKOFF)),
        _E.DELAY_OVER: Edge(_S.PENDING, (_A.SPAWN,)),
        _E.GAVE_UP: Edge(_S.FAILED, (_A.END_RUN,)),
        _E.STOP_ASKED: Edge(_S.STOPPED, (_A.END_RUN,)),
        _E.KILL_ASKED: Edge(_S.STOPPED, (_A.END_RUN,)),
        _E.TREE_STAYS: _STUCK,
    },
    _S.UNKILLABLE: {
        **_to_each((*_NEWS, _E.RECYCLE_ASKED, _E.TREE_STAYS, _E.GANG_BREAKS), Edge(_S.UNKILLABLE)),
        **_to_each(_DEATHS, _AGAIN),  # it died after all; if the run is ending, DECIDE_RESTART does nothing
        _E.TREE_GONE: Edge(_S.BACKOFF),
        _E.STOP_ASKED: Edge(_S.UNKILLABLE, (_A.END_RUN,)),
        _E.KILL_ASKED: Edge(_S.UNKILLABLE, (_A.KILL_TREE, _A.END_RUN)),
        _E.GAVE_UP: Edge(_S.FAILED, (_A.END_RUN,)),
    },
}
_ROWS[_S.PENDING][_E.NOT_STARTED] = Edge(_S.BACKOFF, (_A.DECIDE_RESTART,))  # there is no tree to clear
_ROWS[_S.PENDING][_E.AWAITS_STANDBY] = Edge(_S.BACKOFF)
for _state in TERMINAL:  # requests still come, because ending a run takes a while and users press Ctrl-C again
    _ROWS[_state] = _to_each((_E.STOP_ASKED, _E.KILL_ASKED, _E.RECYCLE_ASKED, _E.TREE_GONE), Edge(_state))
    _ROWS[_state][_E.TREE_STAYS] = Edge(_state, (_A.ALERT,))
_ROWS[_S.DONE][_E.GANG_BREAKS] = Edge(_S.BACKOFF)  # it was complete, but the others cannot train without it

TRANSITIONS: Mapping[tuple[TaskState, LifecycleEvent], Edge] = {
    (state, event): edge for state, rows in _ROWS.items() for event, edge in rows.items()
}


class IllegalTransition(ProcsvBug):
    """The table has no row for this state and event. The text lists the latest transitions."""


class Lifecycle:
    """The current state of one task, through all its attempts. Events go in, actions come out."""

    def __init__(self) -> None:
        self.state = TaskState.PENDING
        self._story: list[str] = [TaskState.PENDING.name]

    def handle(self, event: LifecycleEvent, detail: str = "") -> tuple[LifecycleAction, ...]:
        """Change the state, and return the actions that `event` leads to.

        `detail`: the exit or step, for example. It helps people who debug a missing row.
        """
        edge = TRANSITIONS.get((self.state, event))
        if edge is None:
            raise IllegalTransition(f"{event.name} in {self.state.name}; story: {' > '.join(self._story)}")
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
