"""Mark in the program's own event files where each attempt begins, and say there why the attempts before it ended.

An attempt has one point of `procsv/attempt`, at the step from which it resumes, and in `procsv/ends` the ends that no event file
tells yet.  A resumed training voids what was recorded from its step on: a graph session by its START record, an eager program or a
fit because its files are cut back with the state.  Marks at these steps go, too, and the next attempt repeats what their text said.

Used by the controllers of graph sessions and by what follows the files of tf.summary writers.  Without `procsv launch` no attempt
follows another, and the files are as TensorFlow alone writes them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

import tensorflow as tf

from procsv.base.journal.entries import Exited, Recovered
from procsv.base.journal.file import read_journal
from procsv.base.journal.line import Line
from procsv.training.runtime.context import Runtime

tf1 = tf.compat.v1

ATTEMPT, ENDS = "procsv/attempt", "procsv/ends"
SNAPSHOT_INTERVAL, SNAPSHOT_STALL = "procsv/snapshot_interval", "procsv/snapshot_stall_ms"  # s, ms
MEANING = {
    ATTEMPT: "The number of the attempt that trained from this step on; a new one follows each crash and preemption.",
    ENDS: "Why the attempts before this step ended.",
    SNAPSHOT_INTERVAL: "Seconds between two snapshots of the state in memory.",
    SNAPSHOT_STALL: "Milliseconds for which training waits for a snapshot.",
}
ENDS_MAX = 50  # that one text has: the newest

_marked = WeakSet[Runtime]()  # whose attempt stands in an event file of a tf.summary writer


def make_scalar(tag: str, value: float) -> Any:
    """A Summary.Value with the description of its tag."""
    return tf1.Summary.Value(
        tag=tag, simple_value=value, metadata=tf1.SummaryMetadata(summary_description=MEANING[tag])
    )


def mark_attempt(runtime: Runtime, first_step: int) -> Any:
    """The Summary that marks an attempt which trains from `first_step` on; None if none belongs there."""
    start = runtime.connection.start
    if runtime.observer is not None or not start.is_chief:
        return None
    values = [make_scalar(ATTEMPT, start.incarnation)]
    if start.incarnation > 1 and (
        ends := untold_ends(read_journal(runtime.connection.paths.journal), str(start.task), first_step)
    ):
        metadata = tf1.SummaryMetadata(
            summary_description=MEANING[ENDS], plugin_data=tf1.SummaryMetadata.PluginData(plugin_name="text")
        )
        text = tf.make_tensor_proto("  \n".join(ends[-ENDS_MAX:]))  # a new line, in Markdown
        values.append(tf1.Summary.Value(tag=ENDS, tensor=text, metadata=metadata))
    return tf1.Summary(value=values)


def untold_ends(lines: Iterable[Line], role: str, first_step: int) -> list[str]:
    """The ends of earlier attempts that no event file has, or has at a step which is void for a training from `first_step` on."""
    ends = list[tuple[float, str]]()  # each with the step at which an attempt has told it
    for line in lines:
        if line.role != role:
            continue
        match line.entry:
            case Exited(cause=cause, evidence=evidence, step=step) if cause != "completed":
                at = f"at step {step}" if step >= 0 else "before its first step"
                ends.append((math.inf, f"attempt {line.incarnation} ended {at}: {cause}: {evidence}"))
            case Recovered(step=step):
                ends = [(min(told, max(step, 0)), text) for told, text in ends]
    return [text for told, text in ends if told >= first_step]


def mark_once(runtime: Runtime, writer: Any) -> None:
    """Has a tf.summary writer record the attempt, once it has trained a step, as part of the state that is captured now.

    Before that the state is the one from which the attempt began, and belongs to the attempt before it.
    """
    training: Any = runtime.training  # a TrainingRun
    if runtime in _marked or training is None or training.read_step() <= training.first_step:
        return
    _marked.add(runtime)
    first_step = max(training.first_step, 0)
    mark = mark_attempt(runtime, first_step)
    # The program may have closed its writer: it has no file then.
    with contextlib.suppress(RuntimeError, tf.errors.OpError):
        if mark is not None:
            with writer.as_default(), tf.summary.record_if(True):
                tf.summary.experimental.write_raw_pb(mark.SerializeToString(), step=first_step)
