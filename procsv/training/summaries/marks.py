"""Mark in the program's event files where each attempt begins, and why earlier ones ended.

TensorBoard shows the marks under two tags. Under `procsv/attempt`, an attempt writes its number, at
the step from which it resumes. Under `procsv/ends`, it writes why earlier attempts ended, if no
event file says so yet.

When training resumes at a step, the points that event files already have from this step on become
void. A graph session writes a START record, at which TensorBoard drops them. The files of an eager
program or a fit are cut back when its state is restored. Marks at these steps become void, too, so
the next attempt writes their text again.

The controllers of graph sessions write the marks for their sessions. `eager/event_files.py` writes
them through the program's tf.summary writers. Without `procsv launch`, no attempt follows another:
there are no marks, and the files are what TensorFlow alone writes.
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

_marked = WeakSet[Runtime]()  # runs whose attempt is marked in a tf.summary writer's file


def make_scalar(tag: str, value: float) -> Any:
    """Return a Summary.Value with the description of its tag."""
    return tf1.Summary.Value(
        tag=tag, simple_value=value, metadata=tf1.SummaryMetadata(summary_description=MEANING[tag])
    )


def mark_attempt(runtime: Runtime, first_step: int) -> Any:
    """Return the Summary that marks an attempt which begins at `first_step`.

    Return None without `procsv launch`, and in any task but the chief.
    """
    start = runtime.connection.start
    if runtime.observer is not None or not start.is_chief:
        return None
    values = [make_scalar(ATTEMPT, start.incarnation)]
    if start.incarnation > 1 and (
        ends := unrecorded_ends(read_journal(runtime.connection.paths.journal), str(start.task), first_step)
    ):
        metadata = tf1.SummaryMetadata(
            summary_description=MEANING[ENDS], plugin_data=tf1.SummaryMetadata.PluginData(plugin_name="text")
        )
        text = tf.make_tensor_proto("  \n".join(ends[-ENDS_MAX:]))  # a line break in Markdown
        values.append(tf1.Summary.Value(tag=ENDS, tensor=text, metadata=metadata))
    return tf1.Summary(value=values)


def unrecorded_ends(lines: Iterable[Line], role: str, first_step: int) -> list[str]:
    """Return the texts that say why earlier attempts of the task `role` ended.

    Leave out the ends that an event file records at a step before `first_step`. Training resumes at
    `first_step`, so a record at this step or later is void, and its text is returned again.
    """
    ends = list[tuple[float, str]]()  # the step at which an event file records an end (inf: none does), and its text
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
    """Mark the attempt in the file of a tf.summary writer, if it is not marked there yet.

    The caller is about to capture the state, and notes the file's length with it. Before the
    attempt's first step this function does nothing: the state is still the one from which the
    attempt began, so it belongs to the previous attempt.
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
