"""A path that TensorFlow would read as a pattern gets another name for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from procsv.base.location import lasting_path, literal_path


@pytest.mark.parametrize("name", ["[x]", "a*", "b?", "c\\d", "caf\udce9"])
def test_a_directory_has_a_name_without_patterns_for_as_long_as_it_is_needed(tmp_path: Path, name: str) -> None:
    directory = tmp_path / name
    directory.mkdir()
    (directory / "model-1.index").write_text("here")
    with literal_path(f"{directory}/model-1") as readable:
        assert not set("*?[\\\udce9") & set(readable)
        assert Path(f"{readable}.index").read_text() == "here"
    assert not Path(f"{readable}.index").exists()


@pytest.mark.parametrize("path", ["/l/model.ckpt-7", "/l/model.ckpt-7-?????-of-00002", "gs://bucket/[x]/model-1"])
def test_every_other_path_is_unchanged(path: str) -> None:
    with literal_path(path) as readable:
        assert readable == path


def test_a_directory_that_is_not_utf_8_has_a_lasting_name(tmp_path: Path) -> None:
    directory = tmp_path / "caf\udce9"
    directory.mkdir()
    (directory / "model-1.index").write_text("here")
    readable = lasting_path(f"{directory}/model-1")
    assert readable.isascii()
    assert Path(f"{readable}.index").read_text() == "here"
    os.close(int(readable.split("/")[4]))
    assert lasting_path(f"{tmp_path}/[x]/model-1") == f"{tmp_path}/[x]/model-1"
