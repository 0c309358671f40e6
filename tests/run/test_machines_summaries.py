"""The summary service of a task's own launch writes the task's event records on its machine."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from tensorboard.compat.proto.event_pb2 import Event

from procsv.services.summary.continuity import check_continuity
from procsv.services.summary.event_file import WRITER, read_records
from tests.support.launched import Launched, launched
from tests.support.machines import Machines, machines

pytestmark = [pytest.mark.fault, pytest.mark.long]

TASKS = ("chief", "worker.0")
WRITES = """
import os, pathlib, signal, threading, time
logdir = pathlib.Path(os.environ["PROCSV_LOGDIR"])

def exists(name):
    return (logdir / name).exists()

if os.environ["PROCSV_TASK"] == "chief":
    while not exists("end"):
        threading.Event().wait(0.05)
    raise SystemExit

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from procsv.training.runtime.context import current

streams, noted = current().connection.streams, logdir / "noted"
writer = streams.open_stream(str(logdir / "worker"))

def write(**fields):
    streams.add_event(writer, Event(wall_time=time.time(), **fields).SerializeToString())

step = int(noted.read_text()) if noted.exists() else 0
if step:
    write(step=step + 1, session_log=SessionLog(status=SessionLog.START))
while True:
    step += 1
    padding = b"x" * 3_000_000 if step % 10 == 0 else b""
    write(step=step, summary=Summary(value=[Summary.Value(tag="loss", simple_value=step)]))
    if padding:
        write(step=step, summary=Summary(value=[Summary.Value(tag="big", node_name=padding.decode())]))
    assert streams.flush_stream(writer, 60)
    noted.with_name("new").write_text(str(step))
    noted.with_name("new").rename(noted)
    if exists("die"):
        (logdir / "die").unlink()
        write(step=step + 1, summary=Summary(value=[Summary.Value(tag="loss", simple_value=step + 1)]))
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait(0.01)
"""  # a worker without a session: it is not asked for steps, and notes each record reported as written

TOGETHER = """
import os, threading, time
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from procsv.training.runtime.context import current

streams = current().connection.streams
writer = streams.open_stream(os.path.join(os.environ["PROCSV_LOGDIR"], "together"))
for step in range(50):
    value = Summary.Value(tag=os.environ["PROCSV_TASK"], simple_value=step)
    streams.add_event(writer, Event(step=step, wall_time=time.time(), summary=Summary(value=[value])).SerializeToString())
    assert streams.flush_stream(writer, 60)
if os.environ["PROCSV_TASK"] != "chief":
    open("written", "x").close()
while not os.path.exists("written"):
    threading.Event().wait(0.05)
"""  # the run ends with the chief

HOOKED = """
import json, os, pathlib, threading
import tensorflow as tf
import procsv

tf1 = tf.compat.v1
tf1.disable_eager_execution()
config, logdir = json.loads(os.environ["TF_CONFIG"]), os.environ["PROCSV_LOGDIR"]
role, cluster = config["task"]["type"], tf1.train.ClusterSpec(config["cluster"])
server = tf1.train.Server(cluster, job_name=role, task_index=0)
if role == "ps":
    server.join()
with tf1.device(tf1.train.replica_device_setter(cluster=cluster, worker_device=f"/job:{role}/task:0")):
    step = tf1.train.get_or_create_global_step()
    train = tf1.assign_add(step, 1, use_locking=True)
    tf1.summary.scalar("mine", tf1.cast(step, tf1.float32))
place = os.path.join(logdir, "worker")
own = tf1.train.SummarySaverHook(save_steps=1, output_dir=place, summary_op=tf1.summary.merge_all())
end, pause, is_chief = pathlib.Path(logdir, "end"), threading.Event(), role == "chief"
with procsv.MonitoredTrainingSession(
    server.target, is_chief=is_chief, checkpoint_dir=logdir, hooks=[] if is_chief else [own], save_summaries_steps=0
) as session:
    while not session.should_stop() and not (is_chief and end.exists()):
        session.run(train)
        pause.wait(0.02)
"""  # a hook of the worker's own


def noted(run: Machines) -> int:
    """Return the last step whose record the worker knows is written."""
    found = run.logdir / "noted"
    return int(found.read_text()) if found.exists() else 0


def wait_noted(run: Machines, more: int) -> int:
    step = noted(run) + more
    run.launches["chief"].wait_for(f"records up to step {step}", lambda: noted(run) >= step)
    return step


def wait_killed(run: Machines, chief: Launched) -> None:
    die = run.logdir / "die"
    die.touch()
    chief.wait_for("the death of the worker", lambda: not die.exists())


def assert_whole(run: Machines, files: int = 2) -> None:
    """Check that each step is in the files once and that the service wrote them."""
    last, folder = noted(run), run.logdir / "worker"
    found = check_continuity(folder)
    assert (found.problems, found.tags) == ([], ["big", "loss"])
    steps, shown = set[int](), set[str]()
    for path in folder.iterdir():
        for record in read_records(path)[0]:
            event = Event.FromString(record)
            shown |= {event.source_metadata.writer} - {""}
            steps |= {event.step for value in event.summary.value if value.tag == "loss"}
    assert steps >= set(range(1, last + 1))
    assert shown == {WRITER}
    assert found.files == files, "one an attempt"


def test_the_records_of_a_worker_that_is_killed_and_continues_are_in_its_files_once(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS, "--backoff", "0..0", program=WRITES) as run:
        chief = run.launch_all()
        wait_noted(run, 25)
        wait_killed(run, chief)
        chief.wait_event("spawned", 2, "worker.0")
        wait_noted(run, 25)

        (run.logdir / "end").touch()

        assert run.codes() == dict.fromkeys(TASKS, 0)
        assert_whole(run)
        assert (run.logdir / "procsv" / "logs" / "summary-worker.0.1.log").exists()


def kill_and_go_on(chief: Launched) -> None:
    """Let the worker of HOOKED record, die and record again, then complete the run."""
    folder = chief.logdir / "worker"
    chief.wait_event("ready", 1, "worker.0")
    chief.wait_for("summaries of the worker", lambda: check_continuity(folder).records > 20)
    chief.kill("worker.0")
    chief.wait_event("ready", 2, "worker.0")
    before = check_continuity(folder)
    chief.wait_for("more of them", lambda: check_continuity(folder).records > before.records + 20)
    (chief.logdir / "end").touch()
    assert chief.wait_end() == 0
    found = check_continuity(folder)
    assert (found.problems, found.tags, found.files) == ([], ["mine"], 2), "one file an attempt"


def test_a_workers_hook_records_reach_its_file_at_once_and_continue_with_the_next_attempt(
    tmp_path: Path,
) -> None:
    with machines(tmp_path, (*TASKS, "ps.0"), "--backoff", "0..0", program=HOOKED) as run:
        kill_and_go_on(run.launch_all())
        assert set(run.codes().values()) == {0}


def test_a_workers_hook_records_reach_its_file_at_once_on_one_machine_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HOOKED)
    options = ("--workers", "1", "--ps", "1", "--backoff", "0..0")
    with launched(tmp_path / "run", *options, "train.py", cwd=tmp_path) as run:
        kill_and_go_on(run)


def summary_service(launch: Launched) -> psutil.Process:
    """Return the summary service of this launch."""
    children = psutil.Process(launch.process.pid).children()
    (found,) = [child for child in children if "procsv.services.summary" in child.cmdline()]
    return found


def test_no_record_is_lost_or_doubled_when_the_service_on_the_workers_machine_is_killed(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS, "--backoff", "0..0", program=WRITES) as run:
        run.launch_all()
        wait_noted(run, 15)
        for _ in range(3):
            killed = summary_service(run.launches["worker.0"])
            killed.kill()
            psutil.wait_procs([killed])
            wait_noted(run, 15)  # by the next one, which continues the same file

        (run.logdir / "end").touch()

        assert run.codes() == dict.fromkeys(TASKS, 0)
        assert run.launches["worker.0"].said().count("summary service ended (SIGKILL)") == 3
        assert_whole(run, files=1)


def values_in(path: Path) -> list[tuple[str, int]]:
    """Return tag and step of each value in an event file."""
    events = [Event.FromString(record) for record in read_records(path)[0]]
    return [(value.tag, event.step) for event in events for value in event.summary.value]


def test_tasks_on_two_machines_that_record_in_one_directory_write_one_file_each(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS, program=TOGETHER) as run:
        run.launch_all()
        assert run.codes() == dict.fromkeys(TASKS, 0)
        found = map(values_in, (run.logdir / "together").iterdir())
        assert sorted(found) == [[(task, step) for step in range(50)] for task in TASKS]
