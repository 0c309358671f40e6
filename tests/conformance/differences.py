"""The intended differences between procsv's classes and TensorFlow's. Anything not in this table is
the same.

The tests of this folder use it: `kind.differs(name)` is true for our class, and an unknown name is
an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DIFFERENCES = {
    "keyword-only arguments": "snapshot_secs and final_checkpoint come after TensorFlow's own arguments",
    "no deprecation warning": "there is nothing to switch to",
    "no graph handle as global step": "B16: a resource variable named global_step is found and counts",
    "size-1 global step": "B3: a global step of shape [1] is what the documentation asks for",
    "threads in plain programs": "B1: services and loops work in the supervisor's graph, whatever mode threads begin in",
    "whole checkpoints": "B0, B2: a checkpoint is the state between two steps, and its name is its step",
    "errors after a clean stop": "B4: they are raised, unless they only say that things were stopped",
    "end of input while preparing": "B5: the error is raised as it is, not as one of the generator",
    "blocked threads": "B6: the session is closed before the grace ends, which frees them",
    "last checkpoint": "B7: a session that ends leaves a checkpoint of its last state",
    "summaries that need a feed": "B9: fetched with a step that feeds it, else reported; training goes on",
    "summaries take no input": "B10: they are fetched along with a training step",
    "no rate without steps": "B32: the first global_step/sec comes with the first steps, and is no zero",
    "steady timers": "B11: monotonic time, and no burst of calls after a late one",
    "errors outside a handler": "B12: the exception that is given is the one that is raised",
    "fewer checkpoints to keep": "B14: all that are too many are deleted",
    "broken checkpoints": "B8: an older one that is whole is used instead",
    "unreadable list": "B8: the checkpoints that lie in the logdir are used",
    "moved logdirs": "B8: checkpoints are found beside the list that names them",
    "master local": "B18: it is the target of a local server, as documented",
    "quick waiting": "B24: first looks come quickly, and the whole of max_wait_secs is waited",
    "interrupts stay": "B28: an interrupt is what is raised, whatever fails besides",
    "graph files once": "B22: graph.pbtxt and .meta are made once, however many checkpoints and sessions there are",
    "shards without shared files": "B23: the chief's checkpoint service writes them all",
    "one set of services": "services that are started for another session take the place of those before",
    "CHECKPOINT step": "B2: the event has the step of the checkpoint",
    "no rewriting at the start": "B26: a restored checkpoint is not written again",
    "failing hooks": "B13: what a hook's error leaves unfinished is closed",
    "pauses between recoveries": "B15: attempts in a row wait longer and longer",
    "cure of eager execution": "the error says what to do",
    "readable errors": "B19: the text of an ambiguous collection is a text",
    "open sessions for step functions": "B20: a step function that is called again gets the new session",
    "ends that nobody asked for": "B21: a StopIteration or OutOfRangeError of the program's own is told",
    "graphs once": "B22: a file has each graph once, and graph.pbtxt is written once",
    "whole calls": "B0: a checkpoint has what hooks did after the step, too",
    "an end is an end": "a program that is resumed at its last step makes no step more than one that was never killed",
    "flushes without a session": "a writer's events are in a file when flush returns, a new one for each flush outside of sessions",
    "marks at the start": "a session that goes on from a checkpoint says so in its event file",
}


@dataclass(frozen=True)
class Kind:
    """One of the two classes."""

    name: str
    Supervisor: Callable[..., Any]
    train: Any  # the module with the other names

    @property
    def without_snapshots(self) -> dict[str, Any]:
        """Return arguments with which a monitored session keeps nothing between two checkpoints."""
        return {"snapshot_secs": None} if self.name == "procsv" else {}

    def differs(self, name: str) -> bool:
        """Return whether this is our class, for a listed behaviour."""
        assert name in DIFFERENCES
        return self.name == "procsv"
