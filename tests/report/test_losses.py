"""A live run's loss comes from its event files or its output, and never contradicts the run's steps."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.util.tensor_util import make_tensor_proto

from procsv.base.outcome import NO_STEP, Loss
from procsv.report.event_files import (
    READ_BYTES_MAX,
    START_BYTES,
    EventFileTail,
    Scalar,
    find_loss,
    read_scalars,
    short_name,
)
from procsv.report.losses import LATE_S, Losses, LossNow
from procsv.services.summary.event_file import frame, version_event


def event(*values: Summary.Value, step: int = 1, time_s: float = 1.0) -> bytes:
    data: bytes = Event(wall_time=time_s, step=step, summary=Summary(value=values)).SerializeToString()
    return data


def scalar(value: float, tag: str = "loss", step: int = 1, time_s: float = 1.0) -> bytes:
    return event(Summary.Value(tag=tag, simple_value=value), step=step, time_s=time_s)


def values_of(losses: Losses) -> list[float]:
    return [one.value for one in losses.values]


# -- event files -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "number"),
    [
        ({"simple_value": 0.5}, 0.5),
        ({"simple_value": 0.0}, 0.0),
        ({"simple_value": math.inf}, None),
        ({"tensor": make_tensor_proto(0.75)}, 0.75),
        ({"tensor": make_tensor_proto(-2.5, dtype="float64")}, -2.5),
        ({"tensor": make_tensor_proto([1.0, 2.0])}, None),
        ({"tensor": make_tensor_proto("text")}, None),
        ({"histo": {"min": 1.0}}, None),
    ],
)
@pytest.mark.parametrize("step", [0, 7, 2**40, -1])
def test_a_scalar_is_read_without_the_classes_of_protobuf(
    value: dict[str, Any], number: float | None, step: int
) -> None:
    data = event(Summary.Value(tag="a/ü", **value), Summary.Value(tag="b", simple_value=4.0), step=step, time_s=12.5)
    expected = [] if number is None else [Scalar("a/ü", step, 12.5, number)]
    assert read_scalars(data) == [*expected, Scalar("b", step, 12.5, 4.0)]


def test_a_damaged_record_is_read_without_an_error() -> None:
    data, rng = event(Summary.Value(tag="b", tensor=make_tensor_proto(0.75)), step=300), random.Random(1)
    for end in range(len(data)):
        read_scalars(data[:end])
    for _ in range(5000):
        read_scalars(bytes(rng.randrange(256) if rng.random() < 0.1 else byte for byte in data))


def test_reading_a_loss_imports_neither_protobuf_nor_numpy() -> None:
    code = "import sys, procsv.report.losses as l; l.read_scalars(b''); print([m for m in ('google.protobuf', 'numpy', 'tensorboard') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"[]\n"


def test_the_training_loss_is_preferred_among_several_tags() -> None:
    assert find_loss(["train: loss", "test: loss", "lr"]) == "train: loss"
    assert find_loss(["epoch_loss", "val_loss", "model/loss"]) == "model/loss"
    assert find_loss(["validation: epoch_loss"]) == "validation: epoch_loss"
    assert find_loss(["accuracy"]) == ""
    assert short_name("train: model/loss") == "loss"
    assert short_name("validation: epoch_loss") == "validation: epoch_loss"


def test_the_loss_is_read_from_event_files_as_they_grow_and_a_torn_record_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    path = tmp_path / "train" / "events.out.tfevents.0000000001.host"
    last = frame(scalar(0.25, "model/loss"))
    path.write_bytes(
        frame(version_event(1.0)) + frame(scalar(0.5, "model/loss")) + frame(scalar(7.0, "rate")) + last[:-5]
    )
    losses = Losses(None)
    losses.read_files(tmp_path)
    assert (losses.name, values_of(losses)) == ("train: model/loss", [0.5])
    with path.open("ab") as file:
        file.write(last[-5:])
    losses.read_files(tmp_path)
    assert values_of(losses) == [0.5, 0.25]
    named = Losses("rate")
    named.read_files(tmp_path)
    assert (named.name, values_of(named)) == ("train: rate", [7.0])


def test_the_loss_is_the_newest_attempts(tmp_path: Path) -> None:
    for number, loss in enumerate((0.9, 0.5, 0.1)):
        path = tmp_path / f"events.out.tfevents.{number}.host"
        path.write_bytes(frame(scalar(loss, "loss")))
        os.utime(path, (number, number))
    losses = Losses(None)
    losses.read_files(tmp_path)
    assert values_of(losses) == pytest.approx([0.9, 0.5, 0.1])


def test_a_long_event_file_is_read_from_its_end_and_garbage_in_it_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.0000000001.host"
    large = Event(wall_time=1.0, graph_def=b"x" * (2 * READ_BYTES_MAX)).SerializeToString()
    path.write_bytes(frame(scalar(1.0)) + frame(large) + b"garbage" + frame(scalar(2.0)))
    assert path.stat().st_size > START_BYTES
    assert [Event.FromString(record).summary.value[0].simple_value for record in EventFileTail(path).records()] == [2.0]


def test_two_writers_of_one_tag_are_not_mixed(tmp_path: Path) -> None:
    for name, loss in (("train", 0.5), ("validation", 0.9)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.out.tfevents.1.host").write_bytes(frame(scalar(loss, "epoch_loss")))
    losses = Losses()
    losses.read_files(tmp_path)
    assert (losses.name, values_of(losses)) == ("train: epoch_loss", [0.5])


# -- printed losses --------------------------------------------------------------------------------------------
def test_without_event_files_the_loss_comes_from_the_programs_output() -> None:
    losses = Losses()
    losses.read_output(b"step 1  loss 0.5  9 steps/s\nlossless 3\nStep 2: Loss = 2.5e-1\rloss: 0.1", 3.0)
    losses.read_output(b"25\nloss 1e999\nloss 0.0", 4.0)
    assert losses.values == [
        Scalar("loss", 1, 3.0, 0.5),
        Scalar("loss", 2, 3.0, 0.25),
        Scalar("loss", NO_STEP, 4.0, 0.125),
    ]


@pytest.mark.parametrize(
    ("line", "step", "last_step", "loss"),
    [
        (b"step 78/2000  loss 0.5  9.1 steps/s", 78, 2000, 0.5),
        (b"INFO:tensorflow:loss = 0.25, step = 1,100 (0.331 sec)", 1100, NO_STEP, 0.25),
        (b"global_step=12 of 3,000 loss: 2", 12, 3000, 2.0),
        (b"step 5", 5, NO_STEP, None),
        (b"Loss for final step: 0.3.", None, NO_STEP, None),
        (b"5/10 \xe2\x94\x81 0s 3ms/step - accuracy: 0.1 - loss: 2.3", None, NO_STEP, 2.3),
        (b"step " + b"9" * 5000, None, NO_STEP, None),
    ],
)
def test_a_printed_step_is_read_with_the_last_loss_beside_it(
    line: bytes, step: int | None, last_step: int, loss: float | None
) -> None:
    losses = Losses()
    losses.read_output(line + b"\n", 1.0)
    lines = losses.take_lines()
    assert [(one.step, one.last_step, one.loss) for one in lines] == ([] if step is None else [(step, last_step, loss)])
    assert losses.take_lines() == []


# -- the present loss ------------------------------------------------------------------------------------------
def test_a_printed_loss_counts_if_its_step_is_between_the_known_ones() -> None:
    now = LossNow(losses := Losses())
    assert now.look(NO_STEP, 0.0).loss is None
    assert now.look(100, 1.0).loss is None
    losses.read_output(b"step 110/2000 loss 0.5\neval step 12/50 loss 0.4\n", 1.2)
    assert now.look(120, 1.5) == (Loss("loss", 110, 0.5), 2000)
    losses.read_output(b"step 130/2000 loss 0.3\n", 1.6)
    assert now.look(125, 2.0) == (Loss("loss", 110, 0.5), 2000), "its step has not been read yet"
    assert now.look(140, 2.5) == (Loss("loss", 130, 0.3), 2000)
    losses.read_output(b"step 99999/100000 loss 7\n", 2.5)
    assert now.look(150, 2.5 + LATE_S).loss == Loss("loss", 130, 0.3), "a counter of something else"
    assert now.look(2001, 4.5).last_step == NO_STEP, "the program has gone past it"
    assert now.look(90, 5.0) == (None, 2000), "it has gone back, and makes those steps again"


def test_a_total_that_may_be_of_an_epoch_is_not_taken_for_the_training_loss() -> None:
    now = LossNow(losses := Losses())
    losses.read_output(b"Epoch 1 of 10\nstep 5/23 loss 0.5\n", 1.0)
    now.look(4, 0.9)
    assert now.look(5, 1.0) == (Loss("loss", 5, 0.5), NO_STEP)


def test_a_scalar_counts_if_this_attempt_wrote_it_at_a_step_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(frame(scalar(0.9, step=60, time_s=10.0)) + frame(scalar(0.8, step=1, time_s=20.0)))
    now = LossNow(losses := Losses(since_s=15.0))
    losses.read_files(tmp_path)
    assert now.look(50, 1.0).loss is None, "one is of an earlier attempt, the other's step is an epoch"
    with path.open("ab") as file:
        file.write(frame(scalar(0.75, step=55, time_s=21.0)) + frame(scalar(0.5, step=70, time_s=22.0)))
    losses.read_files(tmp_path)
    assert now.look(60, 1.5).loss == Loss("loss", 55, 0.75)
    assert now.look(70, 2.0).loss == Loss("loss", 70, 0.5)
    assert now.look(65, 2.5).loss is None


@pytest.mark.parametrize(
    ("tag", "name"),
    [("a/Total_Loss", "Total_Loss"), ("loss\x1b]0;title\x07", "loss"), ("loss_損失", "loss"), ("val_loss", "val_loss")],
)
def test_a_losss_name_goes_to_a_terminal_only_if_it_is_plain(tmp_path: Path, tag: str, name: str) -> None:
    (tmp_path / "events.out.tfevents.1.host").write_bytes(frame(scalar(0.5, tag, step=5)))
    now = LossNow(losses := Losses())
    losses.read_files(tmp_path)
    now.look(1, 1.0)
    assert now.look(5, 2.0).loss == Loss(name, 5, 0.5)
