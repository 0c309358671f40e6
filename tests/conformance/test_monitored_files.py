"""A monitored session with a directory writes checkpoints and event files, and calls listeners, as
TensorFlow's does.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from google.protobuf import text_format  # type: ignore[import-untyped]

from procsv.base.run.paths import find_paths
from tests.conformance.differences import Kind
from tests.conformance.logdirs import Model, events, listed, said, saved
from tests.support.journal import read_journal

tf1 = tf.compat.v1
pytestmark = pytest.mark.fault


class Mishap(Exception):
    pass


@pytest.fixture(autouse=True)
def without_cached_writers() -> Iterator[None]:
    yield
    tf1.summary.FileWriterCache.clear()


def train(session: Any, model: Model, steps: int) -> None:
    for _ in range(steps):
        session.run(model.train)


def steps_of(logdir: Path) -> list[int]:
    """Return the steps of the listed checkpoints."""
    return [int(path.rpartition("-")[2]) for path in listed(logdir)[1]]


def all_events(logdir: Path) -> list[Any]:
    tf1.summary.FileWriterCache.clear()  # TensorFlow's keeps its files open
    return events(logdir)


def test_a_checkpoint_is_written_every_so_many_steps_and_at_both_ends(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    with kind.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), save_checkpoint_steps=5) as session:
        train(session, model, 13)
    assert steps_of(tmp_path) == [0, 5, 10, 13]
    assert saved(tmp_path, "weight") == saved(tmp_path, "global_step") == 13
    assert {p.name for p in tmp_path.glob("model.ckpt-5.*") if not p.name.endswith(".manifest.json")} == {
        f"model.ckpt-5.{part}" for part in ("data-00000-of-00001", "index", "meta")
    }
    for number in (0, 5, 10, 13):
        assert tf.train.load_checkpoint(str(tmp_path / f"model.ckpt-{number}")).get_tensor("weight") == number
    with tf.Graph().as_default():
        tf1.train.import_meta_graph(str(tmp_path / "model.ckpt-13.meta"))
    graph = tf1.GraphDef()
    text_format.Parse((tmp_path / "graph.pbtxt").read_text(), graph)
    assert "weight" in {node.name for node in graph.node}
    assert not [node.name for node in graph.node if "procsv" in node.name]


def test_a_program_finds_the_first_files_in_its_session_and_a_steps_files_after_its_run(
    kind: Kind, tmp_path: Path
) -> None:
    model = Model()
    with kind.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), save_checkpoint_steps=1) as session:
        assert (tmp_path / "graph.pbtxt").read_text().startswith("node {")
        for step in range(3):
            assert steps_of(tmp_path) == list(range(step + 1))
            assert len(list(tmp_path.glob("*.meta"))) == step + 1
            train(session, model, 1)


def test_a_session_restores_the_newest_checkpoint(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    with kind.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path)) as session:
        assert steps_of(tmp_path) == [0]
        train(session, model, 3)
    before = (tmp_path / "model.ckpt-3.index").stat().st_mtime_ns
    with kind.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), **kind.without_snapshots) as session:
        assert session.run(model.step) == session.run(model.value) == 3
    if kind.differs("no rewriting at the start"):  # the memory at the end may be saved then
        saves = [
            entry for entry in read_journal(find_paths(tmp_path).journal) if entry["event"] == "checkpoint_durable"
        ]
        assert next(entry["reason"] for entry in saves if entry["trainer"] == 1) == "start"
        assert {entry["reason"] for entry in saves if entry["trainer"] == 2} <= {"final"}
    else:
        assert (tmp_path / "model.ckpt-3.index").stat().st_mtime_ns != before
    with kind.train.SingularMonitoredSession(
        checkpoint_dir=str(tmp_path)
    ) as session:  # saves nothing, restores everything
        train(session, model, 2)
    assert steps_of(tmp_path) == [0, 3]


def test_a_session_that_restores_its_last_step_trains_no_more(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    for last_step, steps in ((3, [0, 3]), (3, [0, 3] if kind.differs("an end is an end") else [0, 3, 4])):
        hooks = [tf1.train.StopAtStepHook(last_step=last_step)]
        with kind.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=hooks) as session:
            while not session.should_stop():
                train(session, model, 1)
        assert steps_of(tmp_path) == steps


def test_a_broken_newest_checkpoint_is_replaced_by_an_older_one(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    with kind.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), save_checkpoint_steps=2) as session:
        train(session, model, 4)
    for part in tmp_path.glob("model.ckpt-4.data*"):
        part.write_bytes(part.read_bytes()[:-1])
    if kind.differs("broken checkpoints"):
        with kind.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path)) as session:
            assert session.run(model.step) == 2
    else:
        with pytest.raises((tf.errors.OpError, RuntimeError)):
            kind.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path))


@pytest.mark.parametrize("error", [Mishap, KeyboardInterrupt])
def test_an_error_in_the_block_ends_the_session(kind: Kind, tmp_path: Path, error: type[BaseException]) -> None:
    model = Model()
    with pytest.raises(error), kind.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path)) as session:  # noqa: PT012
        train(session, model, 3)
        raise error
    assert steps_of(tmp_path) == ([0, 3] if kind.differs("last checkpoint") else [0])


def test_without_a_final_checkpoint_an_error_saves_nothing_and_a_clean_end_saves_what_the_hook_does(
    kind: Kind, tmp_path: Path
) -> None:
    model, options = Model(), {"final_checkpoint": False} if kind.differs("last checkpoint") else {}
    options |= kind.without_snapshots
    with pytest.raises(Mishap), kind.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), **options) as session:  # noqa: PT012
        train(session, model, 3)
        raise Mishap
    assert steps_of(tmp_path) == [0]
    with kind.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), **options) as session:
        train(session, model, 2)
    assert steps_of(tmp_path) == [0, 2]


def test_a_diverged_model_is_not_saved(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    loss = tf.where(tf.greater_equal(model.step, 3), float("nan"), 1.0)  # it may be read before or after its update
    hooks = [tf1.train.NanTensorHook(loss)]
    with (
        pytest.raises(tf1.train.NanLossDuringTrainingError),
        kind.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), hooks=hooks, **kind.without_snapshots
        ) as session,
    ):
        train(session, model, 9)
    assert steps_of(tmp_path) == [0]


class Listener(tf1.train.CheckpointSaverListener):  # type: ignore[name-defined]  # tensorflow is untyped
    """Saves another value than the trained one, and checks the files."""

    def __init__(self, model: Model, logdir: Path) -> None:
        self.model, self.logdir, self.said = model, logdir, [""]
        self.stop_at = -1

    def begin(self) -> None:
        self.negative = tf1.assign(self.model.value, -self.model.value)
        self.said = ["begin"]

    def before_save(self, session: Any, global_step_value: Any) -> None:
        session.run(self.negative)
        self.said.append(f"before {global_step_value}")

    def after_save(self, session: Any, global_step_value: Any) -> bool:
        session.run(self.negative)
        assert listed(self.logdir)[0] == str(self.logdir / f"model.ckpt-{global_step_value}")
        assert saved(self.logdir, "weight") == -global_step_value
        self.said.append(f"after {global_step_value}")
        return bool(global_step_value == self.stop_at)

    def end(self, session: Any, global_step_value: Any) -> None:
        self.said.append(f"end {global_step_value}")


def test_listeners_are_called_around_each_save_before_the_next_step(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    listener = Listener(model, tmp_path)
    hook = kind.train.CheckpointSaverHook(str(tmp_path), save_steps=2, listeners=[listener])
    creator = kind.train.ChiefSessionCreator(checkpoint_dir=str(tmp_path))
    with kind.train.MonitoredSession(creator, [hook]) as session:
        train(session, model, 5)
        assert session.run(model.value) == 5
    rounds = [f"{when} {step}" for step in (0, 2, 4) for when in ("before", "after")]
    assert listener.said == ["begin", *rounds, "before 5", "after 5", "end 5"]


def test_a_listener_can_stop_the_training(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    listener = Listener(model, tmp_path)
    listener.stop_at = 4
    hook = kind.train.CheckpointSaverHook(str(tmp_path), save_steps=2, listeners=[listener])
    with kind.train.SingularMonitoredSession([hook], checkpoint_dir=str(tmp_path)) as session:
        while not session.should_stop():
            session.run(model.train)
        assert session.raw_session().run(model.step) == 4
    assert listener.said[-3:] == ["before 4", "after 4", "end 4"]


class Afterwards(tf1.train.SessionRunHook):  # type: ignore[name-defined]  # tensorflow is untyped
    """Doubles the value after each step."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def begin(self) -> None:
        self.double = tf1.assign(self.model.value, 2 * self.model.value)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        run_context.session.run(self.double)


def test_what_a_hook_does_after_a_step_belongs_to_that_step(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    with kind.train.MonitoredTrainingSession(
        checkpoint_dir=str(tmp_path), save_checkpoint_steps=2, hooks=[Afterwards(model)]
    ) as session:
        train(session, model, 2)  # and no call after it: the hook would change the value at step 2
    assert tf.train.load_checkpoint(str(tmp_path / "model.ckpt-2")).get_tensor("weight") == (
        6 if kind.differs("whole calls") else 3
    )


def test_a_lost_connection_costs_at_most_the_steps_since_the_newest_checkpoint(kind: Kind, tmp_path: Path) -> None:
    class Lose(tf1.train.SessionRunHook):  # type: ignore[name-defined]
        runs = 0

        def before_run(self, run_context: Any) -> None:
            self.runs += 1
            if self.runs == 4:
                raise tf.errors.AbortedError(None, None, "gone")

    model = Model()
    with kind.train.MonitoredTrainingSession(
        checkpoint_dir=str(tmp_path), save_checkpoint_steps=3, hooks=[Lose()]
    ) as session:
        train(session, model, 3)
        train(session, model, 1)
        assert session.run(model.step) == session.run(model.value) == 4
    assert steps_of(tmp_path) == [0, 3, 4]


def test_a_second_hook_saves_elsewhere_like_tensorflows(kind: Kind, tmp_path: Path) -> None:
    model, elsewhere = Model(), tmp_path / "elsewhere"
    hook = kind.train.CheckpointSaverHook(
        str(elsewhere), save_steps=2, checkpoint_basename="copy", save_graph_def=False
    )
    with kind.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path / "main"), hooks=[hook]) as session:
        train(session, model, 2)
        assert listed(elsewhere)[0] == str(elsewhere / "copy-2")
        assert tf.train.load_checkpoint(str(elsewhere / "copy-2")).get_tensor("weight") == 2
    assert steps_of(tmp_path / "main")[-1] == 2
    assert not list(elsewhere.glob("*.meta"))
    assert not (elsewhere / "graph.pbtxt").exists()


def test_without_save_graph_def_there_is_no_meta_and_no_text_graph(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    with kind.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), save_graph_def=False) as session:
        train(session, model, 1)
    assert not list(tmp_path.glob("*.meta"))
    assert not (tmp_path / "graph.pbtxt").exists()
    assert steps_of(tmp_path) == [0, 1]


def test_events_come_in_order(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    options = {"save_summaries_steps": 4, "log_step_count_steps": 5, "save_checkpoint_steps": 100}
    with kind.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), **options) as session:
        train(session, model, 12)
    found = [(said(e), e.step) for e in all_events(tmp_path)]
    graphs = [("graph_def", 0), ("meta_graph_def", 0)]
    assert found[0] == ("file_version", 0)
    assert [f for f in found if "graph" in f[0]] == graphs * (1 if kind.differs("graphs once") else 2)
    assert [f for f in found if f[0] == "CHECKPOINT"] == [("CHECKPOINT", 0), ("CHECKPOINT", 12)]
    assert [f for f in found if f[0] == "START"] == [("START", 1)]
    assert next(step for what, step in found if what == "value") == 1  # later steps are read during their update
    assert next(step for what, step in found if what == "global_step/sec") == 6
    assert found.index(("START", 1)) < found.index(("value", 1))
    with kind.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), **options) as session:
        train(session, model, 1)
    starts = [e.step for e in all_events(tmp_path) if said(e) == "START"]
    # TensorFlow's second file within a second replaces the first.
    assert starts in ([[1, 12, 13]] if kind.differs("marks at the start") else [[13], [1, 13]])


def test_the_programs_own_hook_writes_to_the_sessions_file(kind: Kind, tmp_path: Path) -> None:
    class Own(tf1.train.SessionRunHook):  # type: ignore[name-defined]
        def begin(self) -> None:
            self.writer = tf1.summary.FileWriterCache.get(str(tmp_path))

        def end(self, session: Any) -> None:
            summary = tf1.Summary(value=[tf1.Summary.Value(tag="own", simple_value=1)])
            self.writer.add_summary(summary, 7)

    model = Model()
    with kind.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=[Own()]) as session:
        train(session, model, 1)
    assert ("own", 7) in [(said(e), e.step) for e in all_events(tmp_path)]
    assert len(list(tmp_path.glob("events.out*"))) == 1


def test_a_summary_that_needs_a_feed_does_not_end_the_training(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    fed = tf1.placeholder(tf.float32, [])
    with tf1.control_dependencies([model.train]):
        trained = tf.identity(fed)
    tf1.summary.scalar("fed", fed)
    with kind.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), save_summaries_steps=1) as session:
        if not kind.differs("summaries that need a feed"):
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run(model.step)
            return
        assert session.run(model.step) == 0
        assert session.run(trained, {fed: 3.0}) == 3.0
    values = [v.simple_value for e in all_events(tmp_path) for v in e.summary.value if v.tag == "fed"]
    assert values == [3.0]


def test_a_summary_that_a_hook_feeds_is_written(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    fed = tf1.placeholder(tf.float32, [])
    with tf1.control_dependencies([model.train]):
        trained = tf.identity(fed)
    tf1.summary.scalar("fed", fed)
    hooks = [tf1.train.FeedFnHook(lambda: {fed: 3.0})]
    with kind.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=hooks) as session:
        assert session.run(trained) == 3.0
    assert [v.simple_value for e in all_events(tmp_path) for v in e.summary.value if v.tag == "fed"] == [3.0]
