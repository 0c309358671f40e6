"""A session restores from whatever is in the logdir, whichever program has left it there."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from procsv.base.errors import UserError
from tests.conformance.differences import Kind
from tests.conformance.logdirs import Model, has_checkpoint, listed, wait_for

tf1 = tf.compat.v1
pytestmark = pytest.mark.fault
QUIET = {"save_summaries_secs": 0, "save_model_secs": 600}


def leave(logdir: Path, steps: int) -> None:
    """Write checkpoints with plain TensorFlow at steps 1, 2, …"""
    with tf.Graph().as_default():
        model = Model()
        saver = tf1.train.Saver()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(steps):
                session.run(model.train)
                saver.save(session, str(logdir / "model.ckpt"), global_step=model.step)


def begun(kind: Kind, logdir: Path, **options: Any) -> int:
    """Return the step at which a session starts."""
    with tf.Graph().as_default():
        model = Model()
        with kind.Supervisor(logdir=str(logdir), **{**QUIET, **options}).managed_session() as session:
            return int(session.run(model.step))


def test_a_session_restores_the_checkpoint_that_is_listed_last(kind: Kind, tmp_path: Path) -> None:
    leave(tmp_path, 3)
    assert begun(kind, tmp_path) == 3


def test_an_unreadable_list_is_replaced_by_the_files_in_the_logdir(kind: Kind, tmp_path: Path) -> None:
    leave(tmp_path, 2)
    (tmp_path / "checkpoint").write_text("{ not a list")
    assert begun(kind, tmp_path) == (2 if kind.differs("unreadable list") else 0)


def test_a_listed_checkpoint_that_is_missing_is_skipped(kind: Kind, tmp_path: Path) -> None:
    leave(tmp_path, 2)
    for path in tmp_path.glob("model.ckpt-2.*"):
        path.unlink()
    if kind.differs("broken checkpoints"):
        assert begun(kind, tmp_path) == 1
    else:
        with pytest.raises(ValueError, match="The passed save_path is not a valid checkpoint"):
            begun(kind, tmp_path)


def test_a_moved_logdir_restores(kind: Kind, tmp_path: Path) -> None:
    leave(tmp_path / "before", 2)
    shutil.move(tmp_path / "before", tmp_path / "after")
    if kind.differs("moved logdirs"):
        assert begun(kind, tmp_path / "after") == 2
    else:
        with pytest.raises(ValueError, match="The passed save_path is not a valid checkpoint"):
            begun(kind, tmp_path / "after")


def test_without_a_good_checkpoint_nothing_starts_over(kind: Kind, tmp_path: Path) -> None:
    leave(tmp_path, 2)
    for path in tmp_path.glob("model.ckpt-*.index"):
        path.write_bytes(b"")
    with pytest.raises(UserError if kind.differs("broken checkpoints") else (tf.errors.OpError, RuntimeError)):
        begun(kind, tmp_path)
    assert len(list(tmp_path.rglob("model.ckpt-*.data*"))) == 2


def test_a_checkpoint_of_another_shape_is_an_error_that_says_so(kind: Kind, tmp_path: Path) -> None:
    leave(tmp_path, 1)
    tf1.train.get_or_create_global_step()
    tf1.get_variable("weight", [3], tf.float32, use_resource=False)  # resource variables take any shape
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"mismatch between the current graph and the graph from"):
        kind.Supervisor(logdir=str(tmp_path)).managed_session().__enter__()


def test_what_the_saver_does_not_restore_is_named_in_the_error(kind: Kind, tmp_path: Path) -> None:
    leave(tmp_path, 1)
    model = Model()
    tf1.get_variable("not_saved", [], tf.float32)
    saver = tf1.train.Saver([model.step, model.value])
    with pytest.raises(RuntimeError, match=r"(?s)Init operations did not make model ready.*not_saved"):
        kind.Supervisor(logdir=str(tmp_path), saver=saver).managed_session().__enter__()


def test_the_users_session_manager_restores_too(kind: Kind, tmp_path: Path) -> None:
    leave(tmp_path, 2)
    with tf.Graph().as_default() as graph:
        model = Model()
        ready = tf1.report_uninitialized_variables()
        manager = tf1.train.SessionManager(ready_op=ready, graph=graph)
        supervisor = kind.Supervisor(logdir=str(tmp_path), session_manager=manager, **QUIET)
        with supervisor.managed_session() as session:
            assert session.run(model.step) == 2


def test_recovering_a_session_succeeds_from_a_checkpoint_or_fails_and_never_initializes(
    kind: Kind, tmp_path: Path
) -> None:
    model = Model()
    supervisor = kind.Supervisor(logdir=str(tmp_path), **QUIET)
    manager, saver = supervisor.session_manager, supervisor.saver

    def recovered(**where: str) -> tuple[bool, int | None]:
        session, is_recovered = manager.recover_session("", saver=saver, **where)
        with session:
            return is_recovered, int(session.run(model.step)) if is_recovered else None

    assert recovered(checkpoint_dir=str(tmp_path)) == (False, None)
    leave(tmp_path, 2)
    assert recovered(checkpoint_dir=str(tmp_path)) == (True, 2)
    with supervisor.managed_session() as session:
        assert session.run(model.step) == 2
    assert recovered(checkpoint_dir=str(tmp_path)) == (True, 2)
    assert recovered(checkpoint_filename_with_path=str(tmp_path / "model.ckpt-1")) == (True, 1)
    with pytest.raises(ValueError, match="Can not provide both checkpoint_dir and checkpoint_filename_with_path"):
        recovered(checkpoint_dir=str(tmp_path), checkpoint_filename_with_path=str(tmp_path / "model.ckpt-1"))


def test_a_relative_logdir_keeps_relative_paths(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = Model()
    supervisor = kind.Supervisor(logdir="logdir", save_summaries_secs=0)
    with supervisor.managed_session() as session:
        wait_for(lambda: (tmp_path / "logdir" / "model.ckpt-0.meta").exists())
        wait_for(has_checkpoint(Path("logdir"), "model.ckpt-0"))
        session.run(model.step)
    assert supervisor.save_path == "logdir/model.ckpt"
    assert 'model_checkpoint_path: "model.ckpt-0"' in (tmp_path / "logdir" / "checkpoint").read_text()
    assert begun(kind, Path("logdir")) == 0


def test_a_session_can_wait_for_a_checkpoint(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    supervisor = kind.Supervisor(logdir=str(tmp_path), recovery_wait_secs=0.1, **QUIET)
    writer = threading.Timer(0.5, leave, args=(tmp_path, 2))
    writer.start()
    session = supervisor.prepare_or_wait_for_session(wait_for_checkpoint=True, max_wait_secs=60)
    assert session.run(model.step) in (1, 2)  # whichever comes first
    supervisor.stop()
    session.close()
    writer.join()


def test_waiting_for_a_checkpoint_ends_at_the_time_limit(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    supervisor = kind.Supervisor(logdir=str(tmp_path), recovery_wait_secs=0.1, **QUIET)
    session = supervisor.prepare_or_wait_for_session(wait_for_checkpoint=True, max_wait_secs=0.3)
    assert session.run(model.step) == 0
    wait_for(has_checkpoint(tmp_path, "model.ckpt-0"))  # a thread saves it, which saves nothing once it is stopped
    supervisor.stop()
    session.close()
    assert listed(tmp_path)[0] == str(tmp_path / "model.ckpt-0")
