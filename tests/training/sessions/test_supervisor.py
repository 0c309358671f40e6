"""procsv.Supervisor without `procsv launch` starts its own watchdog and services and ends them with the session."""

import contextlib
import functools
import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import tensorflow as tf

import procsv
from procsv.base.errors import LogdirLocked
from procsv.base.run.paths import find_paths
from procsv.ipc.shm.slot_header import scan_slots
from procsv.services.checkpoint.tools.compare import compare
from tests.support.journal import read_journal
from tests.support.launched import NEWS_S_MAX, environment, python
from tests.support.leftovers import is_helper
from tests.support.programs import freeze, until

tf1 = tf.compat.v1
pytestmark = pytest.mark.fault


class Model:
    """A graph whose variable equals its global step."""

    def __init__(self) -> None:
        self.step = tf1.train.get_or_create_global_step()
        self.weights = tf1.get_variable("weights", [100], initializer=tf1.zeros_initializer())
        self.train = tf.group(tf1.assign_add(self.step, 1), tf1.assign_add(self.weights, tf.ones([100])))


@contextlib.contextmanager
def graph() -> Iterator[Model]:
    with tf.Graph().as_default():
        yield Model()


def _services() -> dict[str, psutil.Process]:
    found = {}
    for child in psutil.Process().children(recursive=True):
        for role in ("checkpoint", "summary"):
            with contextlib.suppress(psutil.Error):  # dead and not yet replaced
                if f"procsv.services.{role}" in child.cmdline():
                    found[role] = child
    return found


def _events(logdir: Path) -> list[Any]:
    return [e for path in sorted(logdir.glob("events.out*")) for e in tf1.train.summary_iterator(str(path))]


def test_both_services_live_as_long_as_the_session(tmp_path: Path) -> None:
    with graph() as model:
        supervisor = procsv.Supervisor(logdir=str(tmp_path / "logdir"))
        with supervisor.managed_session() as session:
            services = _services()
            assert set(services) == {"checkpoint", "summary"}
            session.run(model.train)
        assert not _services()
        assert all(map(is_helper, psutil.Process().children()))
        assert not any(process.is_running() for process in services.values())


def test_a_session_ends_with_its_last_state_on_disk_and_the_next_starts_there(tmp_path: Path) -> None:
    logdir = tmp_path / "logdir"
    with graph() as model:
        supervisor = procsv.Supervisor(logdir=str(logdir))
        with supervisor.managed_session() as session:
            _wait_for_file(logdir / "model.ckpt-0.manifest.json")
            for _ in range(7):
                session.run(model.train)
        assert tf.train.load_checkpoint(str(logdir)).get_tensor("global_step") == 7
        assert supervisor.saver.last_checkpoints == [str(logdir / "model.ckpt-0"), str(logdir / "model.ckpt-7")]
        with supervisor.managed_session() as session:  # the same supervisor, once more
            assert session.run(model.step) == 7
            session.run(model.train)
    with graph() as model, procsv.Supervisor(logdir=str(logdir)).managed_session() as session:
        assert session.run(model.step) == 8
        assert (session.run(model.weights) == 8).all()


def test_without_final_checkpoint_the_end_saves_nothing(tmp_path: Path) -> None:
    with graph() as model:
        supervisor = procsv.Supervisor(logdir=str(tmp_path / "logdir"), final_checkpoint=False, snapshot_secs=600)
        with supervisor.managed_session() as session:
            for _ in range(3):
                session.run(model.train)
    assert tf.train.load_checkpoint(str(tmp_path / "logdir")).get_tensor("global_step") == 0


@pytest.mark.long
@pytest.mark.parametrize("mode", ["v1", "no eager", "plain"])
def test_a_supervisor_works_in_every_mode_of_tensorflow(tmp_path: Path, mode: str) -> None:
    switch = {
        "v1": "tf1.disable_v2_behavior()",
        "no eager": "tf1.disable_eager_execution()",
        "plain": "pass",
    }[mode]
    program = tmp_path / "program.py"
    program.write_text(f"""
import glob
import tensorflow as tf, procsv, sys
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
tf1 = tf.compat.v1
{switch}
def tags():  # of whole records: another may be in the making
    files = glob.glob(sys.argv[1] + "/events.out*")
    return set(value.tag for file in files for event in EventFileLoader(file).Load() for value in event.summary.value)
with tf.Graph().as_default():
    step = tf1.train.get_or_create_global_step()
    train = tf1.assign_add(step, 1)
    tf1.summary.scalar("value", tf.cast(step, tf.float32))
    supervisor = procsv.Supervisor(logdir=sys.argv[1], save_summaries_secs=0.05)
    calls = []
    with supervisor.managed_session() as session:
        supervisor.loop(0.01, lambda: calls.append(1))
        while session.run(train) < 2000 or not calls or "value" not in tags() or "global_step/sec" not in tags():
            pass  # each thread has had its turn
        assert not supervisor.should_stop()
        supervisor.request_stop()
        assert supervisor.should_stop()
""")
    done = python(program, str(tmp_path / "logdir"))
    assert done.returncode == 0, done.stderr
    assert tf.train.load_checkpoint(str(tmp_path / "logdir")).get_tensor("global_step") >= 2000
    tags = {value.tag for event in _events(tmp_path / "logdir") for value in event.summary.value}
    assert {"value", "global_step/sec"} <= tags


def test_an_exception_in_the_block_is_raised_again_once_the_state_is_saved(tmp_path: Path) -> None:
    class Mishap(Exception):
        pass

    def train_and_fail(model: Model, session: Any) -> None:
        session.run(model.train)
        raise Mishap

    with graph() as model:
        supervisor = procsv.Supervisor(logdir=str(tmp_path / "logdir"))
        with pytest.raises(Mishap), supervisor.managed_session() as session:
            train_and_fail(model, session)
    assert tf.train.load_checkpoint(str(tmp_path / "logdir")).get_tensor("global_step") == 1


def test_a_training_that_sets_back_the_step_of_what_it_began_with_is_the_latest(tmp_path: Path) -> None:
    with graph() as model, tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(tf1.assign(model.step, 30))
        tf1.train.Saver().save(session, str(tmp_path / "model.ckpt"), global_step=model.step)
    with graph() as model:
        begin = tf1.assign(model.step, 0)
        with procsv.Supervisor(logdir=str(tmp_path)).managed_session() as session:
            assert session.run(model.step) == 30
            session.run(begin)
            session.run(model.train)
    assert tf1.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-1")


@pytest.mark.parametrize("kind", ["Supervisor", "MonitoredTrainingSession"])
def test_half_a_step_of_a_call_that_failed_is_not_saved(kind: str, tmp_path: Path) -> None:
    with graph() as model:
        fails = tf1.placeholder_with_default(False, [])
        with tf.control_dependencies([tf1.assign_add(model.weights, tf.ones([100]))]):
            check = tf1.debugging.Assert(tf.logical_not(fails), ["no input"])
        with tf.control_dependencies([check]):
            train = tf1.assign_add(model.step, 1)
        if kind == "Supervisor":
            session_of = procsv.Supervisor(logdir=str(tmp_path)).managed_session
        else:
            session_of = functools.partial(procsv.MonitoredTrainingSession, checkpoint_dir=str(tmp_path))
        with pytest.raises(tf.errors.InvalidArgumentError), session_of() as session:  # noqa: PT012
            session.run(train)
            session.run(train, {fails: True})
    saved = tf.train.load_checkpoint(str(tmp_path))
    assert saved.get_tensor("weights")[0] == saved.get_tensor("global_step")


def test_summaries_and_marks_are_in_the_event_file_in_order(tmp_path: Path) -> None:
    with graph() as model:
        supervisor = procsv.Supervisor(logdir=str(tmp_path / "logdir"), summary_op=None, save_summaries_secs=0)
        with supervisor.managed_session() as session:
            _wait_for_file(tmp_path / "logdir" / "model.ckpt-0.manifest.json")
            for number in range(5):
                session.run(model.train)
                summary = tf1.Summary(value=[tf1.Summary.Value(tag="number", simple_value=number)])
                supervisor.summary_computed(session, summary)
    events = _events(tmp_path / "logdir")
    marks = [event.session_log.status for event in events if event.HasField("session_log")]
    assert [(v.tag, e.step) for e in events for v in e.summary.value] == [("number", step) for step in range(1, 6)]
    assert marks[0] == tf1.SessionLog.START
    assert marks[-1] == tf1.SessionLog.STOP
    assert marks.count(tf1.SessionLog.CHECKPOINT) == 2


def test_a_supervisor_without_a_saver_says_that_nothing_is_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tf.get_logger().propagate = True
    with graph() as model, procsv.Supervisor(logdir=str(tmp_path), saver=None).managed_session() as session:
        session.run(model.train)
    said = [message for message in caplog.messages if "saver=None: " in message]
    assert len(said) == 1
    assert "without this argument" in said[0]  # the cure
    assert not list(tmp_path.glob("model.ckpt*"))


@pytest.mark.long
def test_a_second_supervisor_on_a_live_ones_logdir_is_refused_naming_the_first(tmp_path: Path) -> None:
    with graph(), procsv.Supervisor(logdir=str(tmp_path / "logdir")).managed_session():
        program = tmp_path / "program.py"
        program.write_text(
            "import tensorflow as tf, procsv, sys\n"
            "with tf.Graph().as_default():\n"
            "    tf.compat.v1.train.get_or_create_global_step()\n"
            "    procsv.Supervisor(logdir=sys.argv[1]).prepare_or_wait_for_session()\n"
        )
        done = python(program, str(tmp_path / "logdir"))
    assert done.returncode == 1
    assert LogdirLocked.__name__ in done.stderr
    assert f"process {psutil.Process().pid}" in done.stderr


def test_a_killed_service_comes_back_and_the_session_does_not_notice(tmp_path: Path) -> None:
    logdir = tmp_path / "logdir"
    with graph() as model:
        supervisor = procsv.Supervisor(logdir=str(logdir), save_model_secs=600, snapshot_secs=0.05)
        with supervisor.managed_session() as session:
            for role in ("checkpoint", "summary", "checkpoint"):
                before = _services()[role]
                before.send_signal(signal.SIGKILL)
                _wait_for_another(role, before.pid)
                session.run(model.train)
    assert tf.train.load_checkpoint(str(logdir)).get_tensor("global_step") == 3
    restarted = [
        e["role"] for e in read_journal(logdir / "procsv" / "journal.jsonl") if e["event"] == "service_restarted"
    ]
    assert restarted == ["checkpoint", "summary", "checkpoint"]


def test_a_service_that_dies_as_it_is_asked_to_finish_is_replaced_and_the_newest_state_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logdir = tmp_path / "logdir"
    monkeypatch.setenv("PROCSV_FAILPOINTS", "checkpoint.before_fsync=1*off->1*sleep(60)")  # in its second save
    with graph() as model:
        supervisor = procsv.Supervisor(
            logdir=str(logdir), save_model_secs=600, snapshot_secs=0.05, final_checkpoint=False
        )
        with supervisor.managed_session() as session:
            _train_until_in_memory(model, session, find_paths(logdir).shm_dir, 5)
            killer = threading.Thread(target=_kill_in_last_save, args=(_services()["checkpoint"], logdir))
            killer.start()
        killer.join()
    saved = tf.train.load_checkpoint(str(logdir)).get_tensor("global_step")
    assert saved >= 5
    assert not _services()


def _train_until_in_memory(model: Model, session: Any, shm_dir: Path, step: int) -> None:
    deadline_s, pause = time.monotonic() + NEWS_S_MAX, threading.Event()
    while not any(info.step >= step for info in scan_slots(shm_dir)):
        assert time.monotonic() < deadline_s
        session.run(model.train)
        pause.wait(0.01)


def _kill_in_last_save(service: psutil.Process, logdir: Path) -> None:
    """Kill it once the event files show the session's end and its state is being written."""
    deadline_s, pause = time.monotonic() + NEWS_S_MAX, threading.Event()
    while not any(e.session_log.status == tf1.SessionLog.STOP for e in _events(logdir)) or not _is_saving(logdir):
        assert time.monotonic() < deadline_s, "no last save in time"
        pause.wait(0.05)
    service.kill()


def _is_saving(logdir: Path) -> bool:
    return any((logdir / "procsv" / "staging").glob("*"))


@pytest.mark.long
def test_a_killed_trainer_without_watchdog_leaves_its_newest_snapshot_as_a_checkpoint(tmp_path: Path) -> None:
    program = """
import tensorflow as tf, procsv, sys, threading
tf1 = tf.compat.v1
with tf.Graph().as_default():
    step = tf1.train.get_or_create_global_step()
    train = tf1.assign_add(step, 1)
    with procsv.Supervisor(logdir=sys.argv[1], snapshot_secs=0.1).managed_session() as session:
        pause = threading.Event()
        while True:
            print(session.run(train), flush=True)
            pause.wait(0.01)
"""
    logdir = tmp_path / "logdir"
    trainer = subprocess.Popen(
        [sys.executable, "-c", program, str(logdir)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert trainer.stdout is not None
    lines = iter(trainer.stdout)
    until(lambda: any(slot.step >= 100 for slot in scan_slots(find_paths(logdir).shm_dir)), lambda: next(lines))
    services = psutil.Process(trainer.pid).children(recursive=True)
    assert len(services) == 3
    freeze(trainer.pid)
    newest = max(slot.step for slot in scan_slots(find_paths(logdir).shm_dir))
    trainer.kill()
    trainer.communicate()
    _, alive = psutil.wait_procs(services, timeout=NEWS_S_MAX)
    assert not alive
    assert tf.train.load_checkpoint(str(logdir)).get_tensor("global_step") == newest


def test_a_sessions_own_thread_may_request_a_stop_and_everything_ends(tmp_path: Path) -> None:
    with graph() as model:
        supervisor = procsv.Supervisor(logdir=str(tmp_path / "logdir"))
        with supervisor.managed_session() as session:
            threading.Timer(0.2, supervisor.request_stop).start()
            while not supervisor.should_stop():
                session.run(model.train)
        assert supervisor.coord.joined


def _wait_for_input(supervisor: Any, session: Any, get: Any) -> None:
    with contextlib.suppress(tf.errors.CancelledError), supervisor.stop_on_exception():
        session.run(get)


def test_no_garbage_is_collected_while_the_stack_of_a_blocked_thread_is_read() -> None:
    """Before Python 3.11.9 a collection in that call could wait for a thread that waits for the call."""
    collects: list[bool] = []

    def note(_: Any, event: str, called: Any) -> None:
        if event == "c_call" and called is sys._current_frames:
            collects.append(gc.isenabled())

    with tf.Graph().as_default():
        get = tf.queue.FIFOQueue(1, [tf.float32]).dequeue()
        supervisor = procsv.Supervisor()
        try:
            with supervisor.managed_session() as session:
                thread = threading.Thread(target=_wait_for_input, args=(supervisor, session, get), daemon=True)
                supervisor.coord.register_thread(thread)
                thread.start()
                sys.setprofile(note)
        finally:
            sys.setprofile(None)
        assert not thread.is_alive()
    assert collects
    assert not any(collects)
    assert gc.isenabled()


def test_a_supervisor_without_logdir_starts_no_processes() -> None:
    with graph() as model, procsv.Supervisor().managed_session() as session:
        session.run(model.train)
        assert not _services()


def test_a_program_that_restores_by_itself_continues_at_that_step_and_the_journal_says_so(tmp_path: Path) -> None:
    logdir = tmp_path / "logdir"
    with graph() as model:
        own = tf1.train.Saver()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(model.train)
            trained = own.save(session, str(tmp_path / "trained"), global_step=model.step)
    with graph() as model:
        own = tf1.train.Saver()
        with procsv.Supervisor(logdir=str(logdir), summary_op=None).managed_session() as session:
            own.restore(session, trained)
            session.run(model.train)
    journal = {entry["event"]: entry for entry in read_journal(logdir / "procsv" / "journal.jsonl")}
    assert (journal["recovered"]["step"], journal["recovered"]["source"]) == (1, "checkpoint")
    assert journal["ready"]["step"] == 2
    assert tf.train.load_checkpoint(str(logdir)).get_tensor("global_step") == 2


def test_a_saver_with_its_own_op_is_served_by_that_op(tmp_path: Path) -> None:
    with graph() as model:
        with tf.control_dependencies([tf.no_op(), tf1.assign_add(tf1.get_variable("saves", [], tf.int32), 1)]):
            saver = tf1.train.Saver([model.step, model.weights])
        supervisor = procsv.Supervisor(logdir=str(tmp_path / "logdir"), saver=saver)
        with supervisor.managed_session() as session:
            session.run(model.train)
    reader = tf.train.load_checkpoint(str(tmp_path / "logdir"))
    assert reader.get_tensor("global_step") == 1


def _wait_for_another(role: str, pid: int) -> None:
    """Wait until the service of that role is another process than `pid`."""
    deadline_s, pause = time.monotonic() + NEWS_S_MAX, threading.Event()
    while (found := _services().get(role)) is None or found.pid == pid:
        assert time.monotonic() < deadline_s
        pause.wait(0.02)


def _wait_for_file(path: Path) -> None:
    deadline_s, pause = time.monotonic() + NEWS_S_MAX, threading.Event()
    while not path.exists():
        assert time.monotonic() < deadline_s
        pause.wait(0.02)


@pytest.mark.parametrize("name", ["[lr=0.1,bs=*]", "a?b\\c"])
def test_row_41_a_logdir_whose_path_tensorflow_reads_as_a_pattern_can_be_restored(tmp_path: Path, name: str) -> None:
    logdir = tmp_path / name / "logdir"
    for step in (0, 3):
        with graph() as model, procsv.Supervisor(logdir=str(logdir)).managed_session() as session:
            assert session.run(model.step) == step
            for _ in range(3):
                session.run(model.train)
    found = compare(str(logdir), str(logdir), 0.0)
    assert found.is_identical
