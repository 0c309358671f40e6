"""The program's own event files mark its attempts and their ends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event

import procsv
from procsv.base.identity import CHECKPOINT, TRAINER
from procsv.base.journal.file import Journal
from procsv.base.journal.line import Line
from procsv.base.system.system_clock import SystemClock
from procsv.services.summary.event_file import read_records
from procsv.training.summaries.marks import ATTEMPT, ENDS, ENDS_MAX, mark_attempt, mark_once, unrecorded_ends
from tests.support.journal import an_entry, append

tf1 = tf.compat.v1


def ended(attempt: int, step: int, cause: str = "killed", role: str = "trainer") -> Line:
    return Line(1.0, role, attempt, an_entry("exited", cause=cause, evidence="SIGKILL", step=step))


def resumed(attempt: int, step: int) -> Line:
    return Line(2.0, "trainer", attempt, an_entry("recovered", step=step))


def attempts_in(ends: list[str]) -> list[int]:
    return [int(text.split()[1]) for text in ends]


@pytest.mark.parametrize(
    ("lines", "first_step", "wanted"),
    [
        ([], 0, []),
        ([ended(1, 50)], 48, [1]),
        ([ended(1, 50, "stopped")], 50, [1]),  # a preemption
        ([ended(1, 50), resumed(2, 48), ended(2, 90)], 88, [2]),
        # The second attempt saved nothing: the third resumes from the same state, and the first
        # text is void.
        ([ended(1, 50), resumed(2, 48), ended(2, 49)], 48, [1, 2]),
        ([ended(1, 50), resumed(2, 48), ended(2, 49), resumed(3, 48), ended(3, 90)], 88, [3]),
        # A suspect state: the run goes back to an earlier one.
        ([ended(1, 50), resumed(2, 48), ended(2, 90), resumed(3, 88), ended(3, 90)], 30, [1, 2, 3]),
        ([ended(1, -1), ended(2, -1)], 0, [1, 2]),
        ([ended(1, 5), resumed(2, -1), ended(2, 3)], 0, [1, 2]),  # from step 0, twice
        ([ended(1, 50, "completed"), ended(1, 50, role="summary")], 50, []),
    ],
)
def test_each_end_is_marked_by_the_attempt_whose_record_of_it_lasts(
    lines: list[Line], first_step: int, wanted: list[int]
) -> None:
    assert attempts_in(unrecorded_ends(lines, "trainer", first_step)) == wanted


def a_runtime(tmp_path: Path, attempt: int, **more: Any) -> Any:
    """Return what marks.py needs of a Runtime."""
    journal = tmp_path / "journal.jsonl"
    start = SimpleNamespace(is_chief=True, incarnation=attempt, task=TRAINER)
    training = SimpleNamespace(first_step=48, read_step=lambda: more.pop("step", 60))
    connection = SimpleNamespace(start=start, paths=SimpleNamespace(journal=journal))
    return _Runtime(observer=None, connection=connection, training=training)


class _Runtime(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def test_a_mark_has_the_attempt_as_a_scalar_and_the_ends_as_text_each_with_a_description(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", SystemClock())
    for attempt in range(1, ENDS_MAX + 3):
        append(journal, "exited", TRAINER, attempt, cause="killed", evidence="SIGKILL", step=50)
        append(journal, "exited", CHECKPOINT, attempt, cause="killed", evidence="of a service")
    journal.close()
    number, ends = mark_attempt(a_runtime(tmp_path, ENDS_MAX + 3), 48).value
    assert (number.tag, number.simple_value) == (ATTEMPT, ENDS_MAX + 3)
    assert (ends.tag, ends.metadata.plugin_data.plugin_name) == (ENDS, "text")
    assert all(value.metadata.summary_description for value in (number, ends))
    told = ends.tensor.string_val[0].decode().splitlines()
    assert len(told) == ENDS_MAX, "the newest"
    assert told[-1].startswith(f"attempt {ENDS_MAX + 2} ended at step 50: killed: SIGKILL")


def test_the_first_attempt_has_only_its_number_and_tasks_other_than_the_chief_have_none(tmp_path: Path) -> None:
    first, other, observed = (a_runtime(tmp_path, 1) for _ in range(3))
    other.connection.start.is_chief = False
    observed.observer = object()
    assert [value.tag for value in mark_attempt(first, 0).value] == [ATTEMPT]
    assert [mark_attempt(one, 0) for one in (other, observed)] == [None, None]


def test_a_writer_marks_the_attempt_once_at_its_first_step_and_not_before_it_has_trained(
    tmp_path: Path,
) -> None:
    runtime = a_runtime(tmp_path, 2)
    writer = tf.summary.create_file_writer(str(tmp_path / "events"))
    for step in (48, 49, 60):
        runtime.training.read_step = lambda step=step: step
        mark_once(runtime, writer)
        writer.flush()
        (path,) = (tmp_path / "events").iterdir()
        events = [Event.FromString(record) for record in read_records(path)[0]]
        found = [(event.step, [value.tag for value in event.summary.value]) for event in events[1:]]
        assert found == ([] if step == 48 else [(48, [ATTEMPT])])


def test_a_closed_writer_gets_no_mark_and_causes_no_error(tmp_path: Path) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path / "events"))
    writer.close()
    mark_once(a_runtime(tmp_path, 2), writer)
    (path,) = (tmp_path / "events").iterdir()
    assert len(read_records(path)[0]) == 1


@pytest.mark.fault
def test_without_procsv_launch_the_event_file_of_a_session_has_no_marks(tmp_path: Path) -> None:
    for _ in range(2):
        with tf.Graph().as_default():
            train = tf1.assign_add(tf1.train.get_or_create_global_step(), 1)
            with procsv.Supervisor(logdir=str(tmp_path), summary_op=None).managed_session() as session:
                session.run(train)
    records = [record for path in tmp_path.glob("events.out*") for record in read_records(path)[0]]
    tags = {value.tag for record in records for value in Event.FromString(record).summary.value}
    assert not any(tag.startswith("procsv/") for tag in tags)
