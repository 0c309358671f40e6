"""The example programs keep their own promises. Tests of launch run them whole."""

from __future__ import annotations

import importlib
import itertools

import numpy as np
import pytest

from procsv.examples.digits import Batches, Images, digest, load_images
from procsv.examples.digits import parse as parse_digits


def numbered(count: int) -> Images:
    return Images(np.zeros((count, 64), np.float32), np.arange(count))


def test_a_batch_depends_only_on_the_step() -> None:
    in_order = Batches(numbered(100), size=32, seed=7)
    expected = [in_order.at(step).labels.tolist() for step in range(10)]

    restarted = Batches(numbered(100), size=32, seed=7)
    assert expected[8:] == [restarted.at(step).labels.tolist() for step in (8, 9)]
    assert expected[:2] == [restarted.at(step).labels.tolist() for step in (0, 1)]


def test_an_epoch_repeats_no_image_and_the_next_one_has_another_order() -> None:
    batches = Batches(numbered(64), size=16, seed=0)
    epochs = [list(itertools.chain(*(batches.at(4 * epoch + step).labels for step in range(4)))) for epoch in (0, 1)]

    assert [list(range(64))] * 2 == [sorted(epoch) for epoch in epochs]
    assert epochs[0] != epochs[1]


def test_test_images_are_not_trained_on() -> None:
    train, test = load_images(seed=0)

    assert (len(train), len(test)) == (1438, 359)
    again, _ = load_images(seed=0)
    assert np.array_equal(train.pixels, again.pixels)
    other, _ = load_images(seed=1)
    assert not np.array_equal(train.labels, other.labels)


def test_the_digest_notices_one_changed_bit_and_ignores_order() -> None:
    weights, step = np.ones(3, np.float32), np.int64(5)
    changed = np.nextafter(weights, np.float32(2))

    assert digest({"w": weights, "step": step}) == digest({"step": step, "w": weights})
    assert digest({"w": weights, "step": step}) != digest({"w": changed, "step": step})


def test_under_launch_the_logdir_is_the_runs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCSV_LOGDIR", "/somewhere")
    assert parse_digits([]).logdir is None

    monkeypatch.delenv("PROCSV_LOGDIR")
    assert parse_digits([]).logdir == "runs/digits"


@pytest.mark.parametrize("program", ["digits", "custom_loop", "keras_digits", "replicas", "keras_replicas"])
def test_a_wrong_option_is_a_usage_error(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"procsv.examples.{program}").main(["--stepps", "3"])

    assert ended.value.code == 2
    assert "--stepps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "options"), [("replicas", "--workers 2 --ps 1"), ("keras_replicas", "--workers 2 --no-chief")]
)
def test_an_example_with_several_tasks_says_how_to_start_it(program: str, options: str) -> None:
    with pytest.raises(SystemExit, match=f"procsv launch {options} procsv.examples.{program}"):
        importlib.import_module(f"procsv.examples.{program}").main([])
