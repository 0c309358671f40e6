"""The final checkpoints of two runs are compared by bytes where these are equal, and otherwise as
TensorFlow reads them.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from procsv.services.checkpoint.tools.compare import compare

tf1 = tf.compat.v1


def _save(directory: Path, weight: float, step: int = 3, more: bool = False) -> str:
    directory.mkdir()

    def values(slice_info: Any) -> Any:
        return tf.constant([(1.0, weight)[slice_info.var_offset[0]]])

    with tf.Graph().as_default(), tf1.Session() as session:
        with tf1.variable_scope("", partitioner=tf1.fixed_size_partitioner(2)):  # two slices of one tensor
            tf1.get_variable("weight", [2], initializer=lambda shape, dtype, partition_info: values(partition_info))
        tf1.get_variable("words", initializer=["one", "two"])
        if more:
            tf1.get_variable("more", initializer=1)
        session.run(tf1.global_variables_initializer())
        tf1.train.Saver().save(session, str(directory / "model.ckpt"), global_step=step)
    return str(directory)


@pytest.fixture
def baseline(tmp_path: Path) -> str:
    return _save(tmp_path / "baseline", 2.0)


def test_equal_files_need_no_tensorflow(baseline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = _save(tmp_path / "other", 2.0, step=5)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    found = compare(baseline, other, 0.0)
    assert found.is_identical
    assert (found.variables, found.different) == (2, [])
    assert found.second.endswith("model.ckpt-5")


def test_different_files_are_read_and_the_difference_has_a_name_and_a_size(baseline: str, tmp_path: Path) -> None:
    other = _save(tmp_path / "other", 2.5)
    for rtol, is_close in ((0.0, False), (0.3, True)):
        found = compare(baseline, other, rtol)
        assert (found.is_identical, found.is_close) == (False, is_close)
        assert [(one.name, one.max_abs, one.elements) for one in found.different] == [("weight", 0.5, 1)]
        assert found.variables == 2


def test_a_variable_in_only_one_of_them_is_named(baseline: str, tmp_path: Path) -> None:
    found = compare(baseline, _save(tmp_path / "other", 2.0, more=True), 0.0)
    assert not found.is_identical
    assert found.only_in_second == ["more"]


@pytest.mark.parametrize("left", [None, "garbled"])
def test_a_directory_without_a_checkpoint_is_an_error(baseline: str, tmp_path: Path, left: Any) -> None:
    (tmp_path / "none").mkdir()
    if left is not None:
        (tmp_path / "none" / "checkpoint").write_text(left)
    with pytest.raises(FileNotFoundError):
        compare(baseline, str(tmp_path / "none"), 0.0)
