"""The files of a checkpoint are known by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from procsv.services.checkpoint.format.names import all_files, has_files, model_files

V2 = (
    ".data-00000-of-00002",
    ".data-00001-of-00002",
    ".index",
    ".meta",
    ".manifest.json",
)


def make(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).write_bytes(b"")


@pytest.mark.parametrize("base", ["model.ckpt-7", "a[b]c-7", "what?-7", "a*-7", "a\nb-7"])
def test_a_checkpoint_has_exactly_its_own_files_whatever_its_name(base: str, tmp_path: Path) -> None:
    make(tmp_path, *(f"{base}{end}" for end in V2))
    make(
        tmp_path,
        f"{base}.data-0000x-of-00002.",
        f"{base}.Data-00000-of-00002",
        f"{base}7.index",
        f"x{base}.index",
        f"{base}.data-0-of-1",
        f"{base}.data-00000-of-00001.new",
        "abc-7.index",
    )

    path = str(tmp_path / base)

    assert [file.name.removeprefix(base) for file in model_files(path)] == list(V2[:3])
    assert [file.name.removeprefix(base) for file in all_files(path)] == [V2[2], V2[1], V2[0], *V2[3:]]


def test_an_old_format_checkpoint_in_several_files_is_found_by_its_pattern(tmp_path: Path) -> None:
    shards = ["model.ckpt-7-00000-of-00002", "model.ckpt-7-00001-of-00002"]
    make(tmp_path, *shards, "model.ckpt-7-00000-of-00003", "model.ckpt-77-00000-of-00002", "model.ckpt-7-0-of-00002")

    assert [file.name for file in model_files(str(tmp_path / "model.ckpt-7-?????-of-00002"))] == shards


def test_a_relative_path_is_resolved_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path, *(f"m-7{end}" for end in V2))

    assert model_files("m-7") == [Path(f"m-7{end}") for end in V2[:3]]


def test_a_missing_directory_has_no_files(tmp_path: Path) -> None:
    assert all_files(str(tmp_path / "gone" / "model.ckpt-7")) == []
    assert model_files(str(tmp_path / "gone" / "model.ckpt-7-?????-of-00002")) == []


def test_an_unreadable_checkpoint_is_not_a_missing_one(tmp_path: Path) -> None:
    make(tmp_path, "m-7.index", "file")
    (tmp_path / "loop.index").symlink_to("loop.index")
    (tmp_path / "directory.index").mkdir()

    assert has_files(str(tmp_path / "m-7"))
    for name in ("m-8", "file/m-7", "loop", "directory", "nul\0", ""):
        assert not has_files(f"{tmp_path}/{name}")
    with pytest.raises(OSError, match="too long"):  # as with a denied path or a failing disk
        has_files(str(tmp_path / ("m" * 300)))
