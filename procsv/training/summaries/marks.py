"""Mark in the program's event files where each attempt begins, and why earlier ones ended.

An attempt records a point of `procsv/attempt` at the step from which it resumes, and in
`procsv/ends` every end that no event file has yet. A resumed training voids what was recorded from
its step on: a graph session writes a START record, and the files of an eager program or a fit are
cut back when the state is restored. This also voids marks at these steps, and the next attempt
repeats their text.

The controllers of graph sessions use this, and so does the code that follows the files of
tf.summary writers. Without `procsv launch`, no attempt follows another, and the files are as
TensorFlow alone writes them.
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
ENDS_MAX = 50  # the newest ones, in one text

_marked = WeakSet[Runtime]()  # their attempt is in an event file of a tf.summary writer


def make_scalar(tag: str, value: float) -> Any:
    """Return a Summary.Value with the description of its tag."""
    return tf1.Summary.Value(
        tag=tag, simple_value=value, metadata=tf1.SummaryMetadata(summary_description=MEANING[tag])
    )


def mark_attempt(runtime: Runtime, first_step: int) -> Any:
    """Return the Summary that marks an attempt from `first_step` on; None if none is due."""
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
        text = tf.make_tensor_proto("  \n".join(ends[-ENDS_MAX:]))  # a line break in Markdown
        values.append(tf1.Summary.Value(tag=ENDS, tensor=text, metadata=metadata))
    return tf1.Summary(value=values)


def untold_ends(lines: Iterable[Line], role: str, first_step: int) -> list[str]:
    """Return the ends of earlier attempts that have to be recorded.

    No event file has them, or one has them at a step that is void for a training from `first_step`
    on.
    """
    ends = list[tuple[float, str]]()  # each with the step at which an attempt has recorded it
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
    """Have a tf.summary writer record the attempt, as part of the state that is being captured.

    Before the attempt's first step this does nothing: the state is still the one from which the
    attempt began, and belongs to the previous attempt.
    """
    training: Any = runtime.training  # a TrainingRun
    if runtime in _marked or training is None or training.read_step() <= training.first_step:
        return
    _marked.add(runtime)
    first_step = max(training.first_step, 0)
    mark = mark_attempt(runtime, first_step)
    # The program may have closed its writer, which then has no file.
    with contextlib.suppress(RuntimeError, tf.errors.OpError):
        if mark is not None:
            with writer.as_default(), tf.summary.record_if(True):
                tf.summary.experimental.write_raw_pb(mark.SerializeToString(), step=first_step)
