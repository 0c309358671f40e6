"""A supervisor's files: events, checkpoints and the `checkpoint` file, when they are written and restored."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format  # type: ignore[import-untyped]

from procsv.base.run.paths import find_paths
from tests.conformance.differences import Kind
from tests.conformance.logdirs import Model, events, has_checkpoint, listed, said, saved, wait_for
from tests.support.journal import read_journal

tf1 = tf.compat.v1
pytestmark = pytest.mark.fault


def test_the_services_are_three_threads_in_this_order(kind: Kind, tmp_path: Path) -> None:
    Model()
    supervisor = kind.Supervisor(logdir=str(tmp_path))
    session = supervisor.prepare_or_wait_for_session(start_standard_services=False)
    threads = supervisor.start_standard_services(session)
    assert [type(t).__name__ for t in threads] == ["SVSummaryThread", "SVStepCounterThread", "SVTimerCheckpointThread"]
    assert all(isinstance(t, tf1.train.LooperThread) and t.daemon and t.is_alive() for t in threads)
    supervisor.stop()
    assert not any(t.is_alive() for t in threads)
    session.close()


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"save_summaries_secs": 0}, ["SVTimerCheckpointThread"]),
        ({"save_model_secs": 0}, ["SVSummaryThread", "SVStepCounterThread"]),
        ({"summary_op": None, "save_model_secs": None}, ["SVStepCounterThread"]),
        ({"saver": None, "global_step": None}, ["SVSummaryThread"]),
        ({"summary_writer": None}, ["SVTimerCheckpointThread"]),
    ],
)
def test_services_can_be_switched_off(kind: Kind, tmp_path: Path, options: dict[str, Any], left: list[str]) -> None:
    Model()
    supervisor = kind.Supervisor(logdir=str(tmp_path), **options)
    session = supervisor.prepare_or_wait_for_session(start_standard_services=False)
    assert [type(t).__name__ for t in supervisor.start_standard_services(session)] == left
    supervisor.stop()
    session.close()


def test_events_are_written_in_this_order(kind: Kind, tmp_path: Path) -> None:
    Model()
    supervisor = kind.Supervisor(logdir=str(tmp_path))
    rate = [] if kind.differs("no rate without steps") else ["global_step/sec"]
    services = ["CHECKPOINT", *rate, "value"]  # one thread each, in any order
    with supervisor.managed_session():
        wait_for(has_checkpoint(tmp_path, "model.ckpt-0"))
        for word in services:
            wait_for(lambda: (supervisor.summary_writer.flush(), word in map(said, events(tmp_path)))[1])  # noqa: B023  called at once
    found = events(tmp_path)
    words = [said(e) for e in found]
    assert words[:4] == ["file_version", "graph_def", "meta_graph_def", "START"]
    assert sorted(words[4:-1]) == services
    assert words[-1] == "STOP"
    marks = {said(e): e for e in found}
    assert marks["CHECKPOINT"].session_log.checkpoint_path == str(tmp_path / "model.ckpt")
    assert {e.step for e in found} == {0}
    described = tf1.MetaGraphDef.FromString(marks["meta_graph_def"].meta_graph_def)
    assert described.saver_def == supervisor.saver.saver_def
    assert described.graph_def == tf1.GraphDef.FromString(marks["graph_def"].graph_def)


def test_the_graph_is_written_as_text(kind: Kind, tmp_path: Path) -> None:
    Model()
    supervisor = kind.Supervisor(logdir=str(tmp_path), save_model_secs=0)
    with supervisor.managed_session(start_standard_services=False):
        pass
    graph = text_format.Parse((tmp_path / "graph.pbtxt").read_text(), tf1.GraphDef())
    assert {"global_step", "weight"} <= {node.name for node in graph.node}
    assert "_output_shapes" in graph.node[0].attr


def test_a_checkpoint_is_written_at_the_start_and_at_the_end(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    supervisor = kind.Supervisor(logdir=str(tmp_path))
    with supervisor.managed_session() as session:
        wait_for(has_checkpoint(tmp_path, "model.ckpt-0"))
        for _ in range(3):
            session.run(model.train)
    first, last = str(tmp_path / "model.ckpt-0"), str(tmp_path / "model.ckpt-3")
    ours = kind.differs("last checkpoint")
    assert listed(tmp_path) == ((last, [first, last]) if ours else (first, [first]))
    assert supervisor.saver.last_checkpoints == ([first, last] if ours else [first])
    assert saved(tmp_path, "weight") == (3 if ours else 0)


def test_a_checkpoint_and_its_event_name_the_step(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    supervisor = kind.Supervisor(logdir=str(tmp_path), save_model_secs=0.2, save_summaries_secs=0)
    with supervisor.managed_session() as session:
        wait_for(lambda: (session.run(model.train), len(supervisor.saver.last_checkpoints) >= 3)[1])
    if kind.differs("whole checkpoints"):
        for path in supervisor.saver.last_checkpoints:
            reader = tf.train.load_checkpoint(path)
            assert reader.get_tensor("weight") == reader.get_tensor("global_step") == int(path.rpartition("-")[2])
    if kind.differs("CHECKPOINT step"):
        steps = {e.step for e in events(tmp_path) if said(e) == "CHECKPOINT"}
        assert {int(path.rpartition("-")[2]) for path in supervisor.saver.last_checkpoints} <= steps


def test_without_a_global_step_one_checkpoint_is_overwritten(kind: Kind, tmp_path: Path) -> None:
    tf1.get_variable("v", [], tf.float32, initializer=tf1.ones_initializer())
    supervisor = kind.Supervisor(logdir=str(tmp_path))
    with supervisor.managed_session():
        wait_for(has_checkpoint(tmp_path, "model.ckpt"))
    assert listed(tmp_path) == (str(tmp_path / "model.ckpt"), [str(tmp_path / "model.ckpt")])
    assert not {"START", "CHECKPOINT", "global_step/sec"} & set(map(said, events(tmp_path)))


def test_a_session_restores_the_newest_checkpoint_and_initializes_nothing(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    called: list[int] = []
    supervisor = kind.Supervisor(logdir=str(tmp_path), init_fn=lambda session: called.append(1))
    with supervisor.managed_session() as session:
        session.run(model.train)
        supervisor.saver.save(session, supervisor.save_path, global_step=model.step)
    with supervisor.managed_session() as session:
        assert session.run([model.step, model.value]) == [1, 1.0]
    assert called == [1]


def test_our_checkpoint_of_another_graph_is_an_error_that_says_so(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    supervisor = kind.Supervisor(logdir=str(tmp_path))
    with supervisor.managed_session() as session:
        session.run(model.train)
        supervisor.saver.save(session, supervisor.save_path, global_step=model.step)
    with tf.Graph().as_default():
        Model()
        tf1.get_variable("new", [], tf.float32)
        with pytest.raises(tf.errors.NotFoundError, match=r"Restoring from checkpoint failed.*missing from the check"):
            kind.Supervisor(logdir=str(tmp_path)).managed_session().__enter__()


def test_a_broken_newest_checkpoint_is_replaced_by_an_older_one(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    supervisor = kind.Supervisor(logdir=str(tmp_path))
    with supervisor.managed_session() as session:
        wait_for(has_checkpoint(tmp_path, "model.ckpt-0"))
        for _ in range(2):
            session.run(model.train)
            supervisor.saver.save(session, supervisor.save_path, global_step=model.step)
    for part in tmp_path.glob("model.ckpt-2.data*"):
        part.write_bytes(part.read_bytes()[:-1])
    if kind.differs("broken checkpoints"):
        with supervisor.managed_session() as session:
            assert session.run(model.step) == 1
    else:
        with pytest.raises((tf.errors.OpError, RuntimeError)):
            supervisor.managed_session().__enter__()


def test_lowering_max_to_keep_deletes_the_whole_excess(kind: Kind, tmp_path: Path) -> None:
    for keep in (4, 2):
        with tf.Graph().as_default():
            model = Model()
            saver = tf1.train.Saver(max_to_keep=keep)
            supervisor = kind.Supervisor(logdir=str(tmp_path), saver=saver, save_summaries_secs=0)
            with supervisor.managed_session() as session:
                wait_for(has_checkpoint(tmp_path, "model.ckpt-0" if keep == 4 else "model.ckpt-4"))
                for _ in range(4 if keep == 4 else 0):
                    session.run(model.train)
                    saver.save(session, supervisor.save_path, global_step=model.step)
                if keep == 2 and kind.name == "tensorflow":
                    wait_for(lambda: not (tmp_path / "model.ckpt-1.meta").exists())
    left = {path.stem for path in tmp_path.glob("*.index")}
    assert len(left) == (2 if kind.differs("fewer checkpoints to keep") else 3)


def test_a_saver_that_keeps_all_remembers_none_and_lists_the_latest(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    saver = tf1.train.Saver(max_to_keep=0)
    supervisor = kind.Supervisor(logdir=str(tmp_path), saver=saver, save_summaries_secs=0)
    with supervisor.managed_session() as session:
        wait_for(has_checkpoint(tmp_path, "model.ckpt-0"))
        for step in (1, 2):
            session.run(model.train)
            saver.save(session, supervisor.save_path, global_step=model.step)
            assert listed(tmp_path) == (str(tmp_path / f"model.ckpt-{step}"), [str(tmp_path / f"model.ckpt-{step}")])
            assert saver.last_checkpoints == []
    assert saver.last_checkpoints == []
    assert {path.stem for path in tmp_path.glob("*.index")} == {f"model.ckpt-{step}" for step in range(3)}


def test_hours_to_keep_forever_count_from_the_savers_creation(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    saver = tf1.train.Saver(max_to_keep=1, keep_checkpoint_every_n_hours=1e-9)
    supervisor = kind.Supervisor(logdir=str(tmp_path), saver=saver, save_model_secs=0.1, save_summaries_secs=0)
    with supervisor.managed_session() as session:
        wait_for(has_checkpoint(tmp_path, "model.ckpt-0"))
        session.run(model.train)
        wait_for(has_checkpoint(tmp_path, "model.ckpt-1"))
    assert [Path(path).name for path in listed(tmp_path)[1]] == ["model.ckpt-1"]
    assert (tmp_path / "model.ckpt-0.index").exists()


def test_the_next_session_has_its_own_file_unless_the_writer_stays_open(kind: Kind, tmp_path: Path) -> None:
    for name, closes, files in (("closed", True, 2), ("open", False, 1)):
        with tf.Graph().as_default():
            Model()
            supervisor = kind.Supervisor(logdir=str(tmp_path / name), save_summaries_secs=0, save_model_secs=0)
            for _ in range(2):
                with supervisor.managed_session(close_summary_writer=closes):
                    pass
                if closes:
                    _wait_for_the_next_second()  # TensorFlow's writers collide within a second
            supervisor.summary_writer.close()
        assert len(list((tmp_path / name).glob("events.out*"))) == files
        words = list(map(said, events(tmp_path / name)))
        assert words.count("graph_def") == files
        assert words.count("STOP") == (2 if closes else 0)
        assert words.count("START") == 2


def _wait_for_the_next_second() -> None:
    before = int(time.time())
    wait_for(lambda: int(time.time()) > before)


def test_the_program_may_pass_in_summaries(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    supervisor = kind.Supervisor(logdir=str(tmp_path), save_summaries_secs=0, save_model_secs=0)
    with supervisor.managed_session() as session:
        session.run(model.train)
        summary = tf1.Summary(value=[tf1.Summary.Value(tag="mine", simple_value=1.0)])
        supervisor.summary_computed(session, summary)
        supervisor.summary_computed(session, summary.SerializeToString(), 7)
        with pytest.raises(AttributeError):
            supervisor.summary_computed(session, "neither", 8)
    assert [(said(e), e.step) for e in events(tmp_path) if e.HasField("summary")] == [("mine", 1), ("mine", 7)]


def test_the_users_writer_works_without_a_logdir(kind: Kind, tmp_path: Path) -> None:
    Model()
    writer = tf1.summary.FileWriter(str(tmp_path))
    supervisor = kind.Supervisor(summary_writer=writer)
    with supervisor.managed_session() as session:
        supervisor.summary_computed(session, session.run(supervisor.summary_op))
    words = list(map(said, events(tmp_path)))
    assert words == ["file_version", "graph_def", "meta_graph_def", "value", "STOP"]


def test_the_writer_works_without_a_session(kind: Kind, tmp_path: Path) -> None:
    writer = kind.Supervisor(logdir=str(tmp_path)).summary_writer
    written = []
    for step in (1, 2):
        value = tf1.Summary.Value(tag="by hand", simple_value=step)
        writer.add_summary(tf1.Summary(value=[value]), step)
        writer.flush()
        written.append(sorted(event.step for event in events(tmp_path) if said(event) == "by hand"))
    writer.close()
    assert written == [[1], [1, 2]]
    assert len(list(tmp_path.glob("events.out*"))) == (2 if kind.differs("flushes without a session") else 1)


def test_a_global_step_of_one_element_counts(kind: Kind, tmp_path: Path) -> None:
    step = tf1.get_variable("global_step", [1], tf.int64, initializer=tf1.zeros_initializer(), trainable=False)
    train = tf1.assign_add(step, [1])
    supervisor = kind.Supervisor(logdir=str(tmp_path), global_step=step)
    if kind.differs("size-1 global step"):
        with supervisor.managed_session() as session:
            session.run(train)
        assert listed(tmp_path)[0] == str(tmp_path / "model.ckpt-1")
    elif np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        with pytest.raises(TypeError):
            supervisor.managed_session().__enter__()


def test_a_plain_tensorflow_2_program_has_its_files(kind: Kind, tmp_path: Path, plain: None) -> None:
    model = Model()
    supervisor = kind.Supervisor(logdir=str(tmp_path), save_summaries_secs=0.05)

    def train() -> None:
        with supervisor.managed_session() as session:
            supervisor.loop(
                0.05,
                lambda: session.run(tf1.get_default_graph().get_tensor_by_name("global_step/Read/ReadVariableOp:0")),
            )
            wait_for(lambda: supervisor.should_stop() or len(events(tmp_path)) > 6)
            session.run(model.train)

    if kind.differs("threads in plain programs"):
        train()
        assert saved(tmp_path, "global_step") == 1
    else:
        with pytest.raises((TypeError, ValueError, KeyError)):
            train()


def test_a_restored_checkpoint_is_not_written_again_at_the_start_of_a_session(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    with kind.Supervisor(logdir=str(tmp_path), save_summaries_secs=0).managed_session() as session:
        wait_for(has_checkpoint(tmp_path, "model.ckpt-0"))
        wait_for(lambda: (tmp_path / "model.ckpt-0.meta").exists())
        assert session.run(model.step) == 0
    before = (tmp_path / "model.ckpt-0.index").stat().st_mtime_ns
    with tf.Graph().as_default():
        model = Model()
        supervisor = kind.Supervisor(logdir=str(tmp_path), save_model_secs=600)
        with supervisor.managed_session() as session:
            if not kind.differs("no rewriting at the start"):
                wait_for(lambda: (tmp_path / "model.ckpt-0.index").stat().st_mtime_ns != before)
            assert session.run(model.step) == 0
    if kind.differs("no rewriting at the start"):  # the memory at the end is saved, as every last state
        saves = [
            entry for entry in read_journal(find_paths(tmp_path).journal) if entry["event"] == "checkpoint_durable"
        ]
        assert next(entry["reason"] for entry in saves if entry["trainer"] == 1) == "start"
        assert {entry["reason"] for entry in saves if entry["trainer"] == 2} <= {"final"}
