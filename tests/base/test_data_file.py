"""Reading a file that anyone may have put there never hangs and never reads too much."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from procsv.base.errors import UserError
from procsv.base.system.data_file import NotAFile, open_data, open_stream, read_data


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sock(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(("make", "what"), [(fifo, "FIFO"), (device, "link"), (sock, "s")])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_RDWR | os.O_CREAT | os.O_APPEND])
def test_anything_but_a_regular_file_is_refused_at_once_and_named(
    tmp_path: Path, make: Callable[[Path], None], what: str, flags: int
) -> None:
    make(tmp_path / "it")
    with pytest.raises(NotAFile, match=what) as raised:
        open_data(tmp_path / "it", flags)
    assert isinstance(raised.value, UserError)
    assert isinstance(raised.value, OSError)
    assert raised.value.exit_code == 73
    assert str(tmp_path / "it") in str(raised.value)


def test_a_device_behind_a_link_is_refused_even_where_links_may_be_followed(tmp_path: Path) -> None:
    device(tmp_path / "it")
    with pytest.raises(NotAFile, match="device"):
        read_data(tmp_path / "it", follows_links=True)


def test_a_file_is_read_to_its_end_and_one_above_the_size_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_bytes(b"x" * 2_000_000)
    assert read_data(path) == b"x" * 2_000_000
    assert read_data(path, 2_000_000) == b"x" * 2_000_000
    with pytest.raises(NotAFile, match="larger than 1999999 bytes"):
        read_data(path, 1_999_999)
    link = tmp_path / "link"
    link.symlink_to(path)
    assert read_data(link, follows_links=True) == path.read_bytes()
    with open_stream(path) as stream:
        assert stream.read(3) == b"xxx"


def test_a_missing_file_and_a_directory_raise_the_usual_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_data(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        read_data(tmp_path)
