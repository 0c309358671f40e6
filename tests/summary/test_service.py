"""A real summary service writes records, stays small and ends cleanly."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.compat.proto import graph_pb2

from procsv.base.identity import SUMMARY
from procsv.ipc.messaging.messages import Ack
from procsv.ipc.messaging.summary_messages import GraphText, OpenWriter, Records
from procsv.ipc.messaging.watchdog_messages import FlushDone
from procsv.ipc.shm.heartbeat_file import HeartbeatReader
from tests.summary.real_service import ROOT, Run, Trainer, TurningTrainer, event, event_files, records_in, steps_in

pytestmark = pytest.mark.fault


def send(trainer: Trainer, writer: str, first: int, last: int, size: int = 0) -> None:
    for number in range(first, last + 1):
        trainer.streams.add_event(writer, event(number, size))
    trainer.until_written()


def test_acknowledged_records_are_readable_and_the_service_ends_with_nothing_left(run: Run, trainer: Trainer) -> None:
    run.start()
    writer = trainer.streams.open_stream(str(run.logdir), ".v2")
    assert not run.logdir.exists()
    send(trainer, writer, 1, 1000)

    (path,) = event_files(run.logdir)
    assert path.name.endswith(".v2")
    assert steps_in(path) == list(range(1, 1001))
    assert trainer.finish().code == 0
    assert trainer.answered(FlushDone)[0].body == FlushDone(-1, "")
    assert steps_in(path) == list(range(1, 1001))
    assert [p.name for p in run.paths.run_dir.iterdir() if not p.name.endswith(".heartbeat")] == []


def test_the_service_uses_at_most_60_mib_even_after_large_records(run: Run, trainer: Trainer) -> None:
    run.start()
    writer = trainer.streams.open_stream(str(run.logdir), "")
    send(trainer, writer, 1, 1000)
    assert run.rss_mib() < 60

    send(trainer, writer, 1001, 1002, size=100 * 2**20)
    assert run.rss_mib() < 60
    assert list(run.paths.shm_dir.iterdir()) == []
    (path,) = event_files(run.logdir)
    assert records_in(path)[-1] == event(1002, size=100 * 2**20)


def test_the_service_imports_no_tensorflow_and_no_numpy() -> None:
    modules = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, pathlib, procsv.services.summary.process, procsv.services.summary.graph_text as g\n"
            "list(g.read_texts(open('/dev/null', 'rb')))\n"
            "print(*sys.modules)",
        ],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
    ).stdout.split()

    assert {"procsv.services.summary.stream_file", "tensorboard.compat.proto.graph_pb2"} <= set(modules)
    assert not {"tensorflow", "numpy", "keras", "psutil"} & set(modules)


def test_the_heartbeat_counts_written_records(run: Run, trainer: Trainer) -> None:
    run.start()
    send(trainer, trainer.streams.open_stream(str(run.logdir), ""), 1, 42)
    heartbeat = HeartbeatReader(run.paths.heartbeat(SUMMARY, 1))

    def work() -> int:
        beat = heartbeat.read_heartbeat()
        return beat.work if beat else 0

    trainer.until(lambda: work() == 42)
    heartbeat.close()


def test_two_streams_make_two_files(run: Run, trainer: Trainer) -> None:
    run.start()
    one = trainer.streams.open_stream(str(run.logdir), "")
    other = trainer.streams.open_stream(str(run.logdir / "eval"), "")
    send(trainer, one, 1, 10)
    send(trainer, other, 100, 110)

    assert [steps_in(p) for p in event_files(run.logdir)] == [list(range(1, 11))]
    assert [steps_in(p) for p in event_files(run.logdir / "eval")] == [list(range(100, 111))]


def test_a_closed_stream_leaves_no_note_and_the_next_one_makes_a_new_file(run: Run, trainer: Trainer) -> None:
    run.start()
    for first in (1, 11):
        writer = trainer.streams.open_stream(str(run.logdir), "")
        send(trainer, writer, first, first + 9)
        with TurningTrainer(trainer) as streams:
            assert streams.close_stream(writer, 300.0)
        trainer.until(lambda: not list(run.paths.run_dir.glob("*.pos")))

    assert [steps_in(p) for p in event_files(run.logdir)] == [list(range(1, 11)), list(range(11, 21))]


def test_a_full_disk_loses_nothing_and_is_reported(run: Run, trainer: Trainer) -> None:
    service = run.start()
    writer = trainer.streams.open_stream(str(run.logdir), "")
    send(trainer, writer, 1, 100)
    (path,) = event_files(run.logdir)
    _, hard = resource.prlimit(service.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (path.stat().st_size + 50, hard))
    for number in range(101, 1001):
        trainer.streams.add_event(writer, event(number))
    trainer.until(lambda: trainer.streams.error)
    assert str(run.logdir) in trainer.streams.error
    assert steps_in(path) == list(range(1, 101))

    resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (hard, hard))
    trainer.until_written()
    assert trainer.streams.error == ""
    assert steps_in(path) == list(range(1, 1001))


@pytest.mark.parametrize("action", ["enospc", "eio", "torn"])
def test_a_disk_that_fails_for_a_while_loses_and_doubles_nothing(run: Run, trainer: Trainer, action: str) -> None:
    run.start(f"summary.mid_record=3*off->2*{action};summary.after_write=6*off->1*enospc")
    writer = trainer.streams.open_stream(str(run.logdir), "")
    for first in range(1, 200, 20):
        for number in range(first, first + 20):
            trainer.streams.add_event(writer, event(number))
        trainer.turn()
    trainer.until_written()

    assert steps_in(*event_files(run.logdir)) == list(range(1, 201))


def test_a_removed_logdir_is_recreated(run: Run, trainer: Trainer) -> None:
    run.start()
    writer = trainer.streams.open_stream(str(run.logdir), "")
    send(trainer, writer, 1, 10)
    shutil.rmtree(run.logdir)
    send(trainer, writer, 11, 20)
    assert steps_in(*event_files(run.logdir)) == list(range(11, 21))

    run.kill()
    shutil.rmtree(run.logdir)
    run.start()
    send(trainer, writer, 21, 30)
    assert steps_in(*event_files(run.logdir)) == list(range(21, 31))


def test_a_removed_note_is_written_again(run: Run, trainer: Trainer) -> None:
    run.start()
    writer = trainer.streams.open_stream(str(run.logdir), "")
    send(trainer, writer, 1, 10)
    (note,) = run.paths.run_dir.glob("*.pos")
    note.unlink()
    send(trainer, writer, 11, 20)
    run.kill()
    run.start()
    send(trainer, writer, 21, 30)

    (path,) = event_files(run.logdir)
    assert steps_in(path) == list(range(1, 31))


@pytest.mark.long
def test_a_service_that_has_lost_its_notes_continues_in_a_new_file(run: Run, trainer: Trainer) -> None:
    run.start()
    writer = trainer.streams.open_stream(str(run.logdir), "")
    send(trainer, writer, 1, 10)
    run.kill()
    for note in run.paths.run_dir.glob("*.pos"):
        note.unlink()
    run.start()
    send(trainer, writer, 11, 20)

    assert [steps_in(p) for p in event_files(run.logdir)] == [list(range(1, 11)), list(range(11, 21))]


def test_what_a_killed_run_left_torn_is_repaired_and_its_note_is_not_ours(tmp_path: Path) -> None:
    for run_id in ("first", "second"):
        run = Run(tmp_path, run_id)
        trainer = Trainer(run)
        try:
            run.start("summary.mid_record=1*off->1*torn->kill" if run_id == "first" else "")
            writer = trainer.streams.open_stream(str(run.logdir), "")
            if run_id == "first":
                send(trainer, writer, 1, 5)
                trainer.streams.add_event(writer, event(6))
                trainer.until(run.has_ended)
                run.wait_ended()
            else:
                send(trainer, writer, 1, 3)
        finally:
            trainer.close()
            run.close()

    assert [steps_in(p) for p in event_files(run.logdir)] == [[1, 2, 3, 4, 5], [1, 2, 3]]


def test_a_new_trainer_gets_a_new_file_and_the_dead_ones_leftovers_are_removed(run: Run, trainer: Trainer) -> None:
    run.start()
    send(trainer, trainer.streams.open_stream(str(run.logdir), ""), 1, 10)
    left = run.paths.shm_dir / "event.1-0.11"
    left.touch()
    second = Trainer(run, incarnation=2)
    try:
        send(second, second.streams.open_stream(str(run.logdir), ""), 5, 15)
        assert not left.exists()
        assert [p.name for p in run.paths.run_dir.glob("*.pos")] == ["events.2-0.pos"]
        answers = len(trainer.received)
        trainer.client.send(Records("1-0", 11, (event(11),), {}))
        send(second, second.streams.open_stream(str(run.logdir / "eval"), ""), 1, 1)
        trainer.turn()
        assert len(trainer.received) == answers
    finally:
        second.close()

    assert [steps_in(p) for p in event_files(run.logdir)] == [list(range(1, 11)), list(range(5, 16))]


def test_invalid_messages_are_survived(run: Run, trainer: Trainer) -> None:
    run.start()
    secret = run.logdir.parent / "secret"
    secret.write_text("kept")
    trainer.until(lambda: trainer.client.connections)
    trainer.client.send(OpenWriter("../../x", str(run.logdir), ""))
    trainer.client.send(OpenWriter("1-9", str(run.logdir), ""))
    trainer.client.send(Records("1-9", 1, (b"",), {1: str(secret)}))
    trainer.client.send_reliable(GraphText(str(secret), str(run.logdir / "graph.pbtxt")))
    send(trainer, trainer.streams.open_stream(str(run.logdir), ""), 1, 5)

    assert secret.read_text() == "kept"
    assert steps_in(*event_files(run.logdir)) == [1, 2, 3, 4, 5]


def graph(nodes: int) -> graph_pb2.GraphDef:
    made = graph_pb2.GraphDef()
    for number in range(nodes):
        node = made.node.add(name=f"node_{number}", op="Const")
        node.attr["value"].s = bytes(range(64))
    return made


def acked(trainer: Trainer) -> list[object]:
    return [received.answers for received in trainer.answered(Ack) if isinstance(received.answers, GraphText)]


def test_records_flow_while_a_large_graph_is_printed(run: Run, trainer: Trainer) -> None:
    from google.protobuf import text_format  # type: ignore[import-untyped]

    go_on = run.logdir.parent / "go_on"
    run.start(f"summary.before_graph_text=1*await({go_on})")
    path, big = run.logdir / "graph.pbtxt", graph(20_000)
    writer = trainer.streams.open_stream(str(run.logdir), "")
    trainer.until(lambda: trainer.client.connections)
    parcel = trainer.streams.put_parcel(big.SerializeToString())
    trainer.client.send_reliable(GraphText(parcel, str(path)))
    send(trainer, writer, 1, 2000)
    assert not path.exists(), "the records waited for the graph"
    assert not acked(trainer)

    go_on.touch()
    send(trainer, writer, 2001, 4000)
    trainer.until(lambda: acked(trainer))
    assert run.rss_mib() < 60
    assert steps_in(*event_files(run.logdir)) == list(range(1, 4001))
    assert text_format.Parse(path.read_text(), graph_pb2.GraphDef()) == big
    assert list(run.paths.shm_dir.iterdir()) == []


def test_a_graphs_text_survives_a_kill_and_a_full_disk(run: Run, trainer: Trainer) -> None:
    run.start("summary.before_graph_text=kill")
    path = run.logdir / "graph.pbtxt"
    trainer.until(lambda: trainer.client.connections)
    trainer.client.send_reliable(GraphText(trainer.streams.put_parcel(graph(3).SerializeToString()), str(path)))
    trainer.until(run.has_ended)
    run.wait_ended()
    run.start("summary.before_graph_text=1*enospc")
    trainer.until(lambda: acked(trainer))

    assert path.read_text().count("node {") == 3


def test_an_invalid_graph_is_given_up_with_a_message(run: Run, trainer: Trainer) -> None:
    run.start()
    trainer.until(lambda: trainer.client.connections)
    garbage = (b"\xff\xff\xff", b"\x0a\xff\xff\xff\xff\x7fabc", b"\x0a\x03\xff\xff\xff")
    for data in garbage:
        trainer.client.send_reliable(GraphText(trainer.streams.put_parcel(data), str(run.logdir / "graph.pbtxt")))
    trainer.until(lambda: len(acked(trainer)) == len(garbage))

    assert run.log.read_text().count("procsv summary:") == len(garbage)
    assert list(run.logdir.iterdir()) == []
    assert list(run.paths.shm_dir.iterdir()) == []


def test_an_orphaned_service_writes_its_trainers_records_and_ends_with_it(run: Run, trainer: Trainer) -> None:
    run.start()
    stands_in = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    writer = trainer.streams.open_stream(str(run.logdir), "")
    try:
        trainer.pid = stands_in.pid
        send(trainer, writer, 1, 5)
        run.cut_lifeline()
        send(trainer, writer, 6, 10)
        assert not run.has_ended()
    finally:
        stands_in.communicate(b"\n")
    assert run.wait_ended().code == 0
    assert steps_in(*event_files(run.logdir)) == list(range(1, 11))
    assert list(run.paths.run_dir.glob("*.pos")) == []


@pytest.mark.long
def test_an_orphaned_service_whose_trainer_stays_ends_within_the_grace_period(run: Run, trainer: Trainer) -> None:
    run.start()
    trainer.pid = os.getpid()
    send(trainer, trainer.streams.open_stream(str(run.logdir), ""), 1, 5)
    run.cut_lifeline()

    assert run.wait_ended().code == 0


def test_an_orphaned_service_without_a_trainer_ends_soon(run: Run) -> None:
    run.start()
    run.cut_lifeline()

    assert run.wait_ended().code == 0
