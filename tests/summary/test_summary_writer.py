"""A SummaryWriter behaves as TensorFlow's own FileWriter: the same calls give the same events."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from google.protobuf import text_format  # type: ignore[import-untyped]
from tensorboard.backend.event_processing import event_file_loader

from procsv.training.runtime.event_streams import EventStreams
from procsv.training.summaries.writer import SummaryWriter
from tests.summary.real_service import Run, Trainer, TurningTrainer, event_files

tf1 = tf.compat.v1


class ListSink(EventStreams):
    """Event streams that keep what they get."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[str, list[bytes]] = {}
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.is_late = False

    def open_stream(self, logdir: str, filename_suffix: str = "") -> str:
        self.opened.append(logdir)
        name = str(len(self.opened))
        self.streams[name] = []
        return name

    def add_event(self, writer: str, event: bytes) -> None:
        self.streams[writer].append(event)

    def flush_stream(self, writer: str, timeout_s: float) -> bool:
        return not self.is_late

    def close_stream(self, writer: str, timeout_s: float) -> bool:
        self.closed.append(writer)
        return not self.is_late

    def unwritten(self, writer: str | None = None) -> int:
        return len(self.streams[writer or ""]) if self.is_late else 0


def small_graph() -> tf.Graph:
    with tf.Graph().as_default() as graph:
        a = tf1.get_variable("a", initializer=1.0)
        tf1.summary.scalar("a", a * 2.0)
    return graph


def with_metadata(tag: str, text: str) -> Any:
    summary = tf1.Summary()
    value = summary.value.add(tag=tag)
    value.metadata.plugin_data.plugin_name = "text"
    value.tensor.CopyFrom(tf.make_tensor_proto(text))
    return summary


def everything(make: Callable[..., Any]) -> list[Any]:
    """Call the whole interface. Return what must be equal besides the events."""
    graph = small_graph()
    writer = make()
    writer.add_summary(tf1.Summary(value=[tf1.Summary.Value(tag="loss", simple_value=0.5)]), 1)
    writer.add_summary(with_metadata("t", "one").SerializeToString(), global_step=2)
    writer.add_summary(with_metadata("t", "two"), 3)
    writer.add_summary(tf1.Summary(), None)
    writer.add_event(tf1.Event(step=4, wall_time=12.0, file_version="x"))
    writer.add_session_log(tf1.SessionLog(status=tf1.SessionLog.START), 5)
    writer.add_graph(graph, 6)
    writer.add_meta_graph(tf1.train.export_meta_graph(graph=graph), 7)
    metadata = tf1.RunMetadata()
    metadata.step_stats.dev_stats.add(device="/cpu:0")
    writer.add_run_metadata(metadata, "step 8", 8)
    said: list[Any] = []
    refused: list[Callable[[], Any]] = [
        lambda: writer.add_run_metadata(metadata, "step 8", 9),
        lambda: writer.add_meta_graph(graph),
        lambda: writer.add_graph("graph"),
        lambda: writer.add_graph(graph, graph_def=graph.as_graph_def()),
        lambda: writer.add_summary(with_metadata("t", "bad"), "no step"),
    ]
    for wrong in refused:
        with pytest.raises((TypeError, ValueError)) as raised:
            wrong()
        said.append((type(raised.value), str(raised.value)))
    writer.flush()
    said.append(type(writer.get_logdir()))
    with writer as entered:
        said.append(entered is writer)
    for late in (
        lambda: writer.add_summary(tf1.Summary(), 1),
        lambda: writer.add_event(tf1.Event()),
        writer.flush,
        writer.close,
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            late()
        said.append([str(w.message) for w in caught])
    writer.reopen()
    writer.reopen()
    writer.add_summary(with_metadata("t", "three"), 10)
    writer.close()
    return said


def parsed(records: list[bytes]) -> list[Any]:
    """Return the events without times. Graphs are parsed, because the order of their attributes is arbitrary."""
    events: list[Any] = []
    for record in records:
        one = tf1.Event.FromString(record)
        assert one.wall_time > 0
        if one.file_version != "x":
            one.wall_time = 0.0
        graph, meta_graph = tf1.GraphDef.FromString(one.graph_def), tf1.MetaGraphDef.FromString(one.meta_graph_def)
        if one.WhichOneof("what") in ("graph_def", "meta_graph_def"):
            setattr(one, one.WhichOneof("what"), b"")
        events.append((one, graph, meta_graph))
    return events


def read(path: Path) -> list[bytes]:
    return [bytes(record) for record in event_file_loader.RawEventFileLoader(str(path)).Load()]


def test_the_same_calls_give_the_same_events_and_errors(tmp_path: Path) -> None:
    sink, files = ListSink(), []
    original = tf1.summary.FileWriter

    def theirs() -> Any:
        writer = original(str(tmp_path / "theirs"))
        close = writer.event_writer.close

        def close_and_collect() -> None:
            close()
            for path in (tmp_path / "theirs").iterdir():  # the next file may get this one's name
                files.append(read(path)[1:])
                path.unlink()

        writer.event_writer.close = close_and_collect
        return writer

    with tf.Graph().as_default():
        their_words = everything(theirs)
        our_words = everything(lambda: SummaryWriter(tmp_path / "ours", sink))

    assert our_words == their_words
    assert [parsed(stream) for stream in sink.streams.values()] == [parsed(stream) for stream in files]
    assert sink.closed == ["1", "2"]


def test_the_writer_is_a_file_writer_without_a_thread_or_a_file(tmp_path: Path) -> None:
    import threading

    before = set(threading.enumerate())
    with tf.Graph().as_default():
        writer = SummaryWriter(tmp_path / "new" / "logs", ListSink())
        writer.add_summary(tf1.Summary(), 1)

    assert isinstance(writer, tf1.summary.FileWriter)
    assert set(threading.enumerate()) <= before
    assert list((tmp_path / "new" / "logs").iterdir()) == []


def test_the_logdir_reaches_the_streams(tmp_path: Path) -> None:
    sink = ListSink()
    with tf.Graph().as_default():
        writer = SummaryWriter(str(tmp_path), sink)
        writer.close()
        writer.reopen()

    assert sink.opened == [str(tmp_path)] * 2


def test_the_writer_is_refused_in_eager_mode_as_tensorflows_is(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="not compatible with eager execution"):
        SummaryWriter(tmp_path, ListSink())


def test_late_records_are_reported_with_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(tf1.logging, "warning", lambda text, *values: said.append(text % values))
    sink = ListSink()
    sink.is_late = True
    with tf.Graph().as_default():
        writer = SummaryWriter(tmp_path, sink)
        writer.add_summary(tf1.Summary(), 1)
        writer.flush()
        writer.close()

    assert len(said) == 2
    assert all("1 records" in line for line in said)


def test_an_event_is_copied_when_it_is_added(tmp_path: Path) -> None:
    sink = ListSink()
    with tf.Graph().as_default():
        writer = SummaryWriter(tmp_path, sink)
        one = tf1.Event(step=1)
        writer.add_event(one)
        one.step = 2

    assert tf1.Event.FromString(sink.streams["1"][0]).step == 1


@pytest.mark.fault
def test_with_a_real_service_the_file_exists_when_flush_returns(run: Run, trainer: Trainer) -> None:
    run.start()
    with tf.Graph().as_default(), TurningTrainer(trainer) as streams:
        assert isinstance(streams, EventStreams)
        writer = SummaryWriter(run.logdir, streams)
        writer.add_graph(small_graph())
        writer.flush()
        (path,) = event_files(run.logdir)
        assert [e.WhichOneof("what") for e, *_ in parsed(read(path))] == ["file_version", "graph_def"]

        writer.close()
        writer.reopen()
        writer.add_summary(tf1.Summary(), 3)
        writer.close()
    assert len(event_files(run.logdir)) == 2
    assert [e.step for e, *_ in parsed(read(event_files(run.logdir)[1]))] == [0, 3]


def test_a_graphs_text_equals_tensorflows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from procsv.services.summary import graph_text

    @tf.function  # type: ignore[untyped-decorator]
    def double(x: Any) -> Any:
        return tf.cond(x > 1.0, lambda: x * 2.0, lambda: x)

    with small_graph().as_default() as graph:
        double(tf.constant(3.0))
        tf1.train.AdamOptimizer().minimize(tf1.get_variable("w", initializer=tf.ones([3, 3])) ** 2)
    definition = graph.as_graph_def(add_shapes=True)
    assert definition.library.function
    tf.io.write_graph(definition, str(tmp_path), "theirs.pbtxt")
    theirs = (tmp_path / "theirs.pbtxt").read_text()
    if "float_val: 0.8999999761581421\n" in theirs:  # older versions write a float with a double's digits
        theirs = text_format.MessageToString(text_format.Parse(theirs, type(definition)()))
    parcel = tmp_path / "parcel"
    for size in (1, 300, 10**9):
        monkeypatch.setattr(graph_text, "PIECE_BYTES", size)
        parcel.write_bytes(definition.SerializeToString())
        graph_text.print_graph(parcel, tmp_path / "sub" / "ours.pbtxt")
        assert (tmp_path / "sub" / "ours.pbtxt").read_text() == theirs
        assert not parcel.exists()
