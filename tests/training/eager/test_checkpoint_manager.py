"""procsv.CheckpointManager without `procsv launch` keeps, lists and restores what TensorFlow's manager does."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

import procsv
from procsv.base.errors import UserError
from procsv.base.run.manifest import MANIFEST_SUFFIX, STATE_FILE
from procsv.base.run.saved_step import manifest_at
from procsv.training.eager.controller import seconds_of
from procsv.training.snapshots.snapshot_queue import SnapshotQueue
from procsv.training.snapshots.snapshotter import Snapshotter
from procsv.training.snapshots.training_run import training_of

STEP = "step/.ATTRIBUTES/VARIABLE_VALUE"


class Counting:
    """A state that is one number, and its manager."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.v, self.step = tf.Variable(0), tf.Variable(0, dtype=tf.int64)
        self.checkpoint = tf.train.Checkpoint(v=self.v, step=self.step)
        self.manager = procsv.CheckpointManager(self.checkpoint, directory, **{"snapshot_secs": None, **options})

    def train(self, steps: int = 1, leave: bool = False) -> None:
        for _ in range(steps):
            self.v.assign_add(2)
            self.step.assign_add(1)
            self.manager.step()
        if leave:
            sys.exit(0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "run"


def plain(directory: Path, **options: Any) -> tuple[Any, Any]:
    """Return the same objects with TensorFlow's own manager."""
    v = tf.Variable(0)
    checkpoint = tf.train.Checkpoint(v=v, step=tf.Variable(0, dtype=tf.int64))
    return v, tf.train.CheckpointManager(checkpoint, str(directory), **{"max_to_keep": 5, **options})


def test_saves_are_kept_listed_and_restored_as_tensorflows_manager_does(directory: Path) -> None:
    with Counting(directory, max_to_keep=2).manager as manager:
        assert manager.restore_or_initialize() is None
        assert manager.latest_checkpoint is None
        v = manager.checkpoint.v
        for number in (1, 2, 3):
            v.assign(number * 10)
            manager.step()
            assert manager.save() == f"{directory}/ckpt-{number}"
            assert manager.latest_checkpoint == f"{directory}/ckpt-{number}"
        assert manager.checkpoints == [f"{directory}/ckpt-2", f"{directory}/ckpt-3"]
    assert sorted(path.name for path in directory.glob("*.index")) == ["ckpt-2.index", "ckpt-3.index"]

    theirs, their_manager = plain(directory, max_to_keep=2)
    assert their_manager.checkpoints == [f"{directory}/ckpt-2", f"{directory}/ckpt-3"]
    assert their_manager.restore_or_initialize() == f"{directory}/ckpt-3"
    assert theirs.numpy() == 30
    assert their_manager.save() == f"{directory}/ckpt-4"
    assert their_manager.checkpoints == [f"{directory}/ckpt-3", f"{directory}/ckpt-4"]

    ours = Counting(directory, max_to_keep=2)
    with ours.manager as manager:
        assert manager.restore_or_initialize() == f"{directory}/ckpt-4"
        assert ours.v.numpy() == 30
        assert manager.save(wait=True) == f"{directory}/ckpt-5"
        assert manager.checkpoints == [f"{directory}/ckpt-4", f"{directory}/ckpt-5"]


def test_the_last_state_is_saved_unless_the_program_has_saved_it(directory: Path) -> None:
    first = Counting(directory)
    with first.manager as manager:
        first.train(3)
        manager.save()
    assert tf.train.latest_checkpoint(str(directory)) == f"{directory}/ckpt-1"

    second = Counting(directory)
    with second.manager as manager:
        manager.restore_or_initialize()
        second.train(2)
    assert tf.train.latest_checkpoint(str(directory)) == f"{directory}/ckpt-2"
    third = Counting(directory)
    with third.manager as manager:
        assert manager.restore_or_initialize() == f"{directory}/ckpt-2"
        assert (third.v.numpy(), third.step.numpy(), third.checkpoint.save_counter.numpy()) == (10, 5, 1)


def test_a_program_that_restores_and_ends_writes_nothing_and_one_that_trains_a_step_does(directory: Path) -> None:
    first = Counting(directory)
    with first.manager:
        first.train(3)
    written = directory / "ckpt-1.index"
    before = written.stat().st_mtime_ns
    with Counting(directory).manager as manager:
        assert manager.restore_or_initialize() == f"{directory}/ckpt-1"
    assert written.stat().st_mtime_ns == before

    quiet = Counting(directory)  # its steps show only in its counter
    quiet.manager._counter = quiet.step
    with quiet.manager as manager:
        manager.restore_or_initialize()
        quiet.step.assign_add(1)
    assert tf.train.load_variable(str(directory), "step/.ATTRIBUTES/VARIABLE_VALUE") == 4


def test_an_earlier_trainings_saves_say_nothing_about_a_managers_next_training(directory: Path) -> None:
    counting = Counting(directory)
    counting.train(3)
    counting.manager.save(wait=True)
    counting.manager.close()
    counting.manager.restore_or_initialize()
    counting.train(3)
    counting.manager.close()
    assert tf.train.latest_checkpoint(str(directory)) == f"{directory}/ckpt-2"


def test_an_error_in_the_block_saves_nothing_because_it_may_be_half_a_step(directory: Path) -> None:
    counting = Counting(directory)

    def fail() -> None:
        with counting.manager as manager:
            counting.train(2)
            manager.save()
            counting.v.assign(-1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert tf.train.latest_checkpoint(str(directory)) == f"{directory}/ckpt-1"
    assert tf.train.load_variable(f"{directory}/ckpt-1", "v/.ATTRIBUTES/VARIABLE_VALUE") == 4


def test_a_program_that_exits_within_the_block_has_its_last_state_saved(directory: Path) -> None:
    counting = Counting(directory)
    with pytest.raises(SystemExit), counting.manager:
        counting.train(3, leave=True)
    assert tf.train.load_checkpoint(str(directory)).get_tensor(STEP) == 3


def test_a_snapshot_due_when_a_step_fails_is_not_from_the_middle_of_that_step(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, postpone_worker, close = threading.Event(), SnapshotQueue.postpone_worker, Snapshotter.close

    def postpone_and_tell(queue: SnapshotQueue, now_s: float) -> None:
        postpone_worker(queue, now_s)
        looked.set()

    def close_after_a_look(snapshotter: Snapshotter) -> None:
        looked.clear()
        assert looked.wait(60), "what is due is looked for again and again"
        close(snapshotter)

    monkeypatch.setattr(SnapshotQueue, "postpone_worker", postpone_and_tell)
    monkeypatch.setattr(Snapshotter, "close", close_after_a_look)
    counting = Counting(directory, snapshot_secs=0.05)

    def fail() -> None:
        with counting.manager as manager:
            manager.restore_or_initialize()
            counting.train(2)
            manager.save()
            counting.v.assign(-1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    newest = tf.train.latest_checkpoint(str(directory))
    assert tf.train.load_variable(newest, "v/.ATTRIBUTES/VARIABLE_VALUE") == 4


def test_a_save_holds_its_own_moment_though_training_goes_on_at_once(directory: Path) -> None:
    v = tf.Variable(tf.zeros([1000, 1000]))
    with procsv.CheckpointManager(tf.train.Checkpoint(v=v), directory, snapshot_secs=None) as manager:
        manager.restore_or_initialize()
        for number in range(4):
            manager.step()
            path = manager.save()
            v.assign_add(tf.ones([1000, 1000]))
            found = tf.train.load_variable(manager.latest_checkpoint, "v/.ATTRIBUTES/VARIABLE_VALUE")
            assert path == manager.latest_checkpoint
            assert (found == number).all()


def test_objects_created_later_get_their_values_on_creation(directory: Path) -> None:
    first = tf.Module()
    first.early, first.late = tf.Variable(1.0), tf.Variable(2.0)
    with procsv.CheckpointManager(tf.train.Checkpoint(net=first), directory) as manager:
        manager.restore_or_initialize()
        manager.step()
    again = tf.Module()
    again.early = tf.Variable(0.0)
    with procsv.CheckpointManager(tf.train.Checkpoint(net=again), directory) as manager:
        assert manager.restore_or_initialize() == f"{directory}/ckpt-1"
        again.late = tf.Variable(0.0)
        assert (again.early.numpy(), again.late.numpy()) == (1.0, 2.0)
        manager.step()


def test_a_keras_model_that_is_built_after_the_restore_has_all_its_values(directory: Path) -> None:
    import keras

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = keras.layers.Dense(3), keras.layers.Dense(2)

        def call(self, x: Any) -> Any:
            return self.second(self.first(x))

    def train(model: Any, optimizer: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(tf.ones([4, 2])) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return [value.numpy().tolist() for value in (*model.variables, *optimizer.variables)]

    model, optimizer = Model(), keras.optimizers.Adam()
    train(model, optimizer)
    path = tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(directory / "saved"))
    expected = train(model, optimizer)
    model, optimizer = Model(), keras.optimizers.Adam()
    manager = procsv.CheckpointManager(tf.train.Checkpoint(model=model, optimizer=optimizer), directory)
    manager.checkpoint.read(path)
    assert train(model, optimizer) == expected


@pytest.mark.parametrize(
    ("is_built", "holds_rest", "missing"),
    [(False, False, "5 variables"), (True, False, "1 variable of Keras (seed"), (False, True, "")],
)
def test_variables_of_keras_that_a_restart_does_not_restore_are_named(
    directory: Path, capfd: pytest.CaptureFixture[str], is_built: bool, holds_rest: bool, missing: str
) -> None:
    import keras

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [keras.layers.Dense(2) for number in range(2)]
            self.drop, self.last = keras.layers.Dropout(0.5), keras.layers.Dense(1)
            self.unused = keras.layers.Dropout(0.5)

        def call(self, x: Any, training: bool = False) -> Any:
            x = self.unused(self.parts[1](self.parts[0](x)), training=False)
            return self.last(self.drop(x, training=training))

    model, optimizer = Model(), keras.optimizers.Adam()
    model(tf.ones([1, 2]))
    if is_built:
        optimizer.build(model.trainable_variables)
    rest = [variable.value for variable in model.variables] if holds_rest else []
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, rest=rest)
    with procsv.CheckpointManager(checkpoint, directory, snapshot_secs=None) as manager:
        manager.restore_or_initialize()
        optimizer.build(model.trainable_variables)  # the first step does that, and draws numbers
        model(tf.ones([1, 2]), training=True)
        manager.step()
        manager.save()
    said = capfd.readouterr().err
    assert f"does not restore {missing}" in said if missing else "does not restore" not in said


@pytest.mark.parametrize(("kind", "line"), [("outside", "as in tf.train.Checkpoint"), ("number", "not a variable")])
def test_a_step_counter_that_a_restart_does_not_restore_is_reported(
    directory: Path, capfd: pytest.CaptureFixture[str], kind: str, line: str
) -> None:
    counter = tf.Variable(0, dtype=tf.int64) if kind == "outside" else 0
    checkpoint = tf.train.Checkpoint(v=tf.Variable(0))
    with procsv.CheckpointManager(checkpoint, directory, step_counter=counter, snapshot_secs=None) as manager:
        manager.restore_or_initialize()
        for _ in range(3):
            manager.step()
        manager.save(wait=True)
    assert line in capfd.readouterr().err
    manifest = manifest_at(directory / f"ckpt-1{MANIFEST_SUFFIX}")
    assert manifest is not None
    assert manifest.step == (0 if kind == "outside" else 3)


def test_a_program_that_restores_by_itself_finds_the_newest_checkpoint(directory: Path) -> None:
    first = Counting(directory, step_counter=None)
    with first.manager:
        first.train(4)
    second = Counting(directory)
    with second.manager as manager:
        second.checkpoint.restore(manager.latest_checkpoint)
        assert second.v.numpy() == 8
        second.train(1)
    assert tf.train.load_variable(f"{directory}/ckpt-1", "v/.ATTRIBUTES/VARIABLE_VALUE") == 10


def test_interval_number_and_callbacks_work_as_tensorflows(directory: Path) -> None:
    step, called = tf.Variable(0, dtype=tf.int64), list[str]()
    checkpoint = tf.train.Checkpoint(step=step)
    options = tf.train.CheckpointOptions(experimental_write_callbacks=[called.append])
    started = list[str]()
    with procsv.CheckpointManager(
        checkpoint,
        directory,
        step_counter=step,
        checkpoint_interval=10,
        checkpoint_name="mine",
        init_fn=lambda: started.append("anew"),
    ) as manager:
        assert manager.restore_or_initialize() is None
        assert started == ["anew"]
        assert manager.save(options=options) == f"{directory}/mine-1"
        assert called == [f"{directory}/mine-1"]
        step.assign(9)
        assert manager.save() is None
        assert manager.save(check_interval=False, checkpoint_number=40) == f"{directory}/mine-40"
        step.assign(19)
        assert manager.save(checkpoint_number=tf.constant(41)) == f"{directory}/mine-41"
        assert checkpoint.save_counter.numpy() == 3
        manager.step()


def test_an_unwritable_directory_is_reported_and_training_goes_on(directory: Path) -> None:
    counting = Counting(directory)
    with counting.manager as manager:
        counting.train()
        assert manager.save(wait=True)
        (directory / "ckpt-2.index").mkdir()  # blocks the next one
        with pytest.raises(OSError, match="ckpt-2 is not saved"):
            manager.save(wait=True)
        counting.train()
        (directory / "ckpt-2.index").rmdir()


# -- refusals --------------------------------------------------------------------------------------------------
def test_a_step_on_another_thread_is_refused(directory: Path) -> None:
    counting = Counting(directory)
    errors = list[Exception]()

    def elsewhere() -> None:
        for call in (counting.manager.step, counting.manager.save):
            try:
                call()
            except UserError as error:
                errors.append(error)

    with counting.manager:
        counting.train()
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
    assert ["the training thread" in str(error) for error in errors] == [True, True]


def test_a_second_manager_of_a_directory_says_how_to_end_the_first_and_works_once_that_is_done(
    directory: Path,
) -> None:
    counting = Counting(directory)
    with counting.manager:
        counting.train()
        second = procsv.CheckpointManager(tf.train.Checkpoint(), directory)
        with pytest.raises(UserError, match=r"`close\(\)` of a CheckpointManager"):
            second.save()
    assert second.save(wait=True) == f"{directory}/ckpt-1"
    second.close()


def test_a_recreated_manager_ends_its_predecessors_training_and_resumes_from_its_newest_state(
    directory: Path,
) -> None:
    first = Counting(directory)
    first.manager.restore_or_initialize()
    first.train(3)
    first.manager.save()
    first.v.assign(99)  # a notebook's cell is interrupted here, within a step, and run again
    again = Counting(directory)
    assert again.manager.restore_or_initialize() == f"{directory}/ckpt-1"
    assert again.v.numpy() == 6
    again.train(2)
    assert again.manager.save(wait=True) == f"{directory}/ckpt-2"

    first.v.assign(7)
    assert first.manager.save(wait=True) == f"{directory}/ckpt-2", "the one before is used again"
    with pytest.raises(UserError, match="one training"), first.manager:
        again.manager.step()


@pytest.mark.parametrize(
    ("way", "restores"),
    [("nothing", False), ("a part", None), ("its own", True), ("another", True), ("manager", True)],
)
def test_the_manager_knows_whether_the_program_has_restored_the_existing_state(
    directory: Path, way: str, restores: bool | None
) -> None:
    first = Counting(directory)
    first.train()
    first.manager.save(wait=True)
    assert training_of(first.manager).habit.restores is None, "it has not looked for anything"
    first.manager.close()

    again = Counting(directory)
    newest = f"{directory}/ckpt-1"
    match way:
        case "a part":  # as from a model trained before, elsewhere
            tf.train.Checkpoint(v=again.v).restore(newest).expect_partial()
        case "its own":
            again.checkpoint.restore(again.manager.latest_checkpoint)
        case "another":
            tf.train.Checkpoint(v=again.v, step=again.step).restore(newest).expect_partial()
        case "manager":
            again.manager.restore_or_initialize()
    again.train()
    training = training_of(again.manager)
    assert training.habit.restores is restores
    assert training.origin.source == ("checkpoint" if restores else "fresh")
    again.manager.close()


def test_the_manager_refuses_in_words_what_it_cannot_do(tmp_path: Path) -> None:
    checkpoint = tf.train.Checkpoint()
    with pytest.raises(UserError, match="name the directory"):
        procsv.CheckpointManager(checkpoint)
    with pytest.raises(UserError, match="is a URL"):
        procsv.CheckpointManager(checkpoint, "gs://bucket/run")
    with tf.Graph().as_default(), pytest.raises(UserError, match=r"procsv\.Supervisor"):
        procsv.CheckpointManager(checkpoint, tmp_path)
    with pytest.raises(ValueError, match="snapshot_secs"):
        procsv.CheckpointManager(checkpoint, tmp_path, snapshot_secs=-1)
    with pytest.raises(ValueError, match="max_to_keep"):
        procsv.CheckpointManager(checkpoint, tmp_path, max_to_keep=0)


@pytest.mark.parametrize(("given", "seconds"), [("auto", None), (None, 0.0), (0, 0.0), (2, 2.0), (0.5, 0.5)])
def test_snapshot_secs_is_parsed_as_on_the_command_line(given: Any, seconds: float | None) -> None:
    assert seconds_of(given, None) == seconds  # type: ignore[arg-type]  # is asked for the command line's alone


def test_without_a_save_or_a_step_nothing_is_written(directory: Path) -> None:
    with Counting(directory).manager as manager:
        assert manager.latest_checkpoint is None
    assert not (directory / STATE_FILE).exists()


def test_the_last_state_replaces_no_checkpoint_that_the_program_has_numbered_itself(directory: Path) -> None:
    for last in (7, 8):  # the second manager knows the numbers from the disk
        counting = Counting(directory, max_to_keep=None)
        with counting.manager as manager:
            manager.restore_or_initialize()
            while counting.step < last:
                counting.train(1)
                if counting.step.numpy() % 2 == 0 and counting.step < 7:
                    manager.save(checkpoint_number=counting.step)
    saved = {int(p.stem[5:]): tf.train.load_variable(str(p)[:-6], STEP) for p in directory.glob("ckpt-*.index")}
    assert saved == {2: 2, 4: 4, 6: 6, 7: 8}


def test_saves_keep_their_steps_although_the_state_between_two_of_them_is_restored(directory: Path) -> None:
    saved = list[int]()
    for last in (6, 11):  # the first manager ends two steps after its second save
        counting = Counting(directory)
        counting.manager.close()
        counting.manager = manager = procsv.CheckpointManager(
            counting.checkpoint, directory, step_counter=counting.step, checkpoint_interval=3, snapshot_secs=None
        )
        with manager:
            manager.restore_or_initialize()
            while counting.step < last:
                counting.train(1)
                if manager.save() is not None:
                    saved.append(int(counting.step))
    assert saved == [1, 4, 7, 10]


def test_a_checkpoint_that_the_service_deletes_while_it_is_listed_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing: Any = SimpleNamespace(_as_named=lambda path: Path(path).name, _follow_chief=lambda: None)
    (tmp_path / "ckpt-2.index").touch()
    monkeypatch.setattr(Path, "exists", lambda _: True)  # it was there a moment ago
    procsv.CheckpointManager._list(listing, (f"{tmp_path}/ckpt-1", f"{tmp_path}/ckpt-2"))
    assert (list(listing._maybe_delete), listing._latest_checkpoint) == (["ckpt-2"], "ckpt-2")
