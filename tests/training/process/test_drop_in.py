"""Programs that know nothing of procsv run with its classes instead of TensorFlow's."""

import subprocess
import sys
from pathlib import Path

import keras
import pytest
import tensorflow as tf

import procsv
from tests.support.launched import NEWS_S_MAX, environment, launched, python

tf1 = tf.compat.v1

LIBRARY = """
# As libraries of training loops do it: the class is taken from TensorFlow's own module, services and threads by hand.
from tensorflow.python.training import supervisor


def train(train_op, logdir, steps, summary_writer=supervisor.Supervisor.USE_DEFAULT):
    trainer = supervisor.Supervisor(
        is_chief=True, logdir=logdir, summary_writer=summary_writer, save_summaries_secs=60, save_model_secs=600
    )
    with trainer.managed_session("", start_standard_services=False) as session:
        print("begins at", session.run(trainer.global_step), flush=True)
        trainer.start_standard_services(session)
        threads = trainer.start_queue_runners(session)
        while not trainer.should_stop():
            if session.run(train_op) >= steps:
                trainer.request_stop()
        trainer.saver.save(session, trainer.save_path, global_step=trainer.global_step)
        trainer.stop(threads, close_summary_writer=True, ignore_live_threads=False)
"""
PROGRAM = """
import sys
import tensorflow.compat.v1 as tf
import loops

tf.disable_v2_behavior()
queue = tf.FIFOQueue(10, [tf.int64], shapes=[[]])
tf.train.add_queue_runner(tf.train.QueueRunner(queue, [queue.enqueue(tf.constant(1, tf.int64))]))
loops.train(tf.assign_add(tf.train.get_or_create_global_step(), queue.dequeue()), sys.argv[1], int(sys.argv[2]))
"""

WHEREVER = """
import sys
{before}
import {imported}
from tensorflow.compat.v1.train import Supervisor as by_name
import tensorflow.compat.v1.train as a_module
import tensorflow.compat.v2 as v2
from tensorflow.python.training import supervisor, training
import tensorflow as tf
import keras
from keras.callbacks import BackupAndRestore as theirs_by_name

{after}
import procsv
from procsv.training.eager import drop_in as eager
from procsv.training.keras import backup as fits
from tensorflow.python.checkpoint import checkpoint_management
managers = [tf.train.CheckpointManager, tf.compat.v1.train.CheckpointManager, v2.train.CheckpointManager, checkpoint_management.CheckpointManager]
assert all(one is eager.CheckpointManager for one in managers), managers
backups = [keras.callbacks.BackupAndRestore, tf.keras.callbacks.BackupAndRestore, keras.src.callbacks.BackupAndRestore, theirs_by_name]
assert all(one is fits.DropInBackup for one in backups), backups
found = {{
    "tf.compat.v1.train": tf.compat.v1.train.Supervisor,
    "tensorflow.compat.v1.train": a_module.Supervisor,
    "by name": by_name,
    "v2.compat.v1": v2.compat.v1.train.Supervisor,
    "supervisor": supervisor.Supervisor,
    "training": training.Supervisor,
}}
wrong = [name for name, one in found.items() if one is not procsv.Supervisor]
assert not wrong, wrong
procsv.uninstall()
assert tf.compat.v1.train.Supervisor is supervisor.Supervisor is training.Supervisor is by_name is v2.compat.v1.train.Supervisor
assert supervisor.Supervisor is not procsv.Supervisor
assert tf.train.CheckpointManager is checkpoint_management.CheckpointManager is eager.theirs
assert keras.callbacks.BackupAndRestore is tf.keras.callbacks.BackupAndRestore is theirs_by_name is not fits.DropInBackup
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("when", "imported"),
    [
        ("before", "tensorflow"),
        ("before", "keras"),
        ("before", "tensorflow.python.training.supervisor"),
        ("after", "tensorflow"),  # all of them are imported by then
    ],
)
def test_a_program_finds_our_classes_wherever_it_looks_and_uninstall_restores_tensorflows(
    when: str, imported: str, tmp_path: Path
) -> None:
    lines = {"before": "", "after": ""}
    lines[when] = (
        "import procsv; procsv.install(); assert not {'tensorflow', 'keras'} & set(sys.modules)"
        if when == "before"
        else "import procsv; procsv.install(); procsv.install(); by_name, theirs_by_name = (vars(sys.modules['__main__'])[name] for name in ('by_name', 'theirs_by_name'))"
    )
    program = tmp_path / "program.py"
    program.write_text(WHEREVER.format(imported=imported, **lines))
    if when == "after":
        done = python(program)
    else:
        argv = [sys.executable, str(program)]
        done = subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=NEWS_S_MAX, check=False)
    assert done.returncode == 0, done.stderr


MONITORED = """
import tensorflow as tf
from tensorflow.python.training import basic_session_run_hooks, monitored_session, training
before = {name: getattr(monitored_session, name) for name in ("MonitoredSession", "_HookedSession")}
import procsv, procsv.training.sessions.monitored as ours

procsv.install()
names = set(procsv.__all__) & set(dir(tf.compat.v1.train)) - {"CheckpointManager"}
assert {"CheckpointSaverHook", "MonitoredTrainingSession", "SessionCreator", "SingularMonitoredSession"} <= names
for name in names:
    homes = [tf.compat.v1.train, *(home for home in (monitored_session, basic_session_run_hooks) if hasattr(home, name))]
    wrong = [home.__name__ for home in homes if getattr(home, name) is not getattr(procsv, name)]
    assert not wrong, (name, wrong)
assert issubclass(tf.compat.v1.train.CheckpointManager, procsv.CheckpointManager)
assert training.MonitoredSession is procsv.MonitoredSession
for name in ("_HookedSession", "_CoordinatedSession", "_RecoverableSession"):
    assert getattr(monitored_session, name) is getattr(ours, name), name
with tf.Graph().as_default(), monitored_session.SingularMonitoredSession() as session:
    assert isinstance(session, procsv.SingularMonitoredSession)
procsv.uninstall()
assert before == {name: getattr(monitored_session, name) for name in before}
assert tf.compat.v1.train.CheckpointSaverHook is not procsv.CheckpointSaverHook
"""


@pytest.mark.long
def test_the_monitored_sessions_names_are_replaced_everywhere_and_restored(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(MONITORED)
    done = python(program)
    assert done.returncode == 0, done.stderr


def test_keras_on_another_backend_is_left_alone_with_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = keras.callbacks.BackupAndRestore
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    for _ in range(2):
        procsv.install()
    try:
        assert keras.callbacks.BackupAndRestore is theirs
        assert capsys.readouterr().err.count("Keras runs on jax: ") == 1
    finally:
        procsv.uninstall()


def test_install_can_be_undone_and_repeated() -> None:
    theirs = tf1.train.Supervisor
    for _ in range(2):
        procsv.install()
        try:
            assert tf1.train.Supervisor is procsv.Supervisor
        finally:
            procsv.uninstall()
        assert tf1.train.Supervisor is theirs


def test_a_class_that_the_program_derives_is_one_of_ours() -> None:
    procsv.install()
    try:

        class Derived(tf1.train.Supervisor):  # type: ignore[name-defined]
            pass

        with tf.Graph().as_default():
            assert isinstance(Derived(), procsv.Supervisor)
    finally:
        procsv.uninstall()


@pytest.mark.long
@pytest.mark.fault
def test_an_unchanged_program_with_a_training_loop_library_survives_kills_under_launch(tmp_path: Path) -> None:
    program, logdir = tmp_path / "train.py", tmp_path / "logdir"
    program.write_text(PROGRAM)
    (tmp_path / "loops.py").write_text(LIBRARY)
    options = ["--drop-in", "--snapshot-secs", "0.1", "--backoff", "0.1s..1s"]
    options += [
        "--fault",
        "kill trainer at step 15000",
    ]  # not from outside: killed after its last step, it would train one more
    with launched(logdir, *options, str(program), str(logdir), "30000") as run:
        recovered = run.wait_event("recovered", 2)[1]
        assert recovered["source"] == "memory"
        assert recovered["step"] > 0
        assert run.wait_end() == 0
    assert tf.train.load_checkpoint(str(logdir)).get_tensor("global_step") == 30000


def test_a_checkpoint_manager_that_cannot_be_supervised_is_tensorflows_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    procsv.install()
    try:
        with tf.Graph().as_default():
            manager = tf.train.CheckpointManager(tf.train.Checkpoint(), str(tmp_path / "graph"), max_to_keep=1)
        assert not isinstance(manager, procsv.CheckpointManager)
        assert isinstance(manager, tf.train.CheckpointManager)  # for code that checks
        assert capsys.readouterr().err.count("to a graph") == 1
    finally:
        procsv.uninstall()
