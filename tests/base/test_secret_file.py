"""A secret file that is too short, too long or readable by others is refused with the fix."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from procsv.base.errors import UserError
from procsv.base.run.secret_file import SECRET_BYTES_MAX, read_secret
from tests.support.restricted_pod import restricted
from tests.support.within import go_within

SECRET, NOBODY = bytes(range(1, 33)), 65534


def written(path: Path, data: bytes = SECRET, mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as refused:
        read_secret(path)
    assert refused.value.exit_code == 2
    return str(refused.value)


def test_a_secret_is_read_without_the_newline_that_an_editor_adds(tmp_path: Path) -> None:
    assert read_secret(written(tmp_path / "s")) == SECRET
    assert read_secret(written(tmp_path / "t", SECRET + b"\r\n", 0o400)) == SECRET


@pytest.mark.parametrize("last", [b"\n", b"\r", b"\r\n"])
def test_a_secret_of_random_bytes_is_read_unchanged_whatever_its_last_byte(tmp_path: Path, last: bytes) -> None:
    random = (b"\xff" + SECRET)[: 32 - len(last)] + last
    assert read_secret(written(tmp_path / "s", random)) == random


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_our_own_secret_file_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    said = refusal(written(tmp_path / "s", mode=mode))
    assert f"{mode:04o}" in said
    assert f"chmod 600 {tmp_path / 's'}" in said


@pytest.mark.parametrize("mode", [0o644, 0o440, 0o400])
def test_a_secret_in_a_kubernetes_volume_is_accepted_as_the_manifest_mounts_it(tmp_path: Path, mode: int) -> None:
    """The kubelet puts the file behind two links, so that a whole Secret changes at once."""
    (tmp_path / "..2026_11_24").mkdir()
    written(tmp_path / "..2026_11_24" / "secret", mode=mode)
    (tmp_path / "..data").symlink_to("..2026_11_24")
    (tmp_path / "secret").symlink_to("..data/secret")
    assert read_secret(tmp_path / "secret") == SECRET


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes a root of a container")
def test_a_pods_user_can_read_a_secret_owned_by_root_and_its_group(tmp_path: Path) -> None:
    """This is how fsGroup leaves a Secret of mode 0400."""
    (root := tmp_path / "root").mkdir()
    (data := tmp_path / "volume" / "..data").mkdir(parents=True)
    os.chown(written(data / "secret", mode=0o440), 0, NOBODY)
    (data.parent / "secret").symlink_to("..data/secret")
    code = "import sys, pathlib; from procsv.base.run.secret_file import read_secret; sys.stdout.buffer.write(read_secret(pathlib.Path('secret')))"
    command = go_within(restricted(root, NOBODY, "/volume", {"/volume": data.parent}), [sys.executable, "-c", code])
    done = subprocess.run(command, capture_output=True, check=True, env={"PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.stdout == SECRET


def test_a_second_link_to_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(written(tmp_path / "s", mode=0o644))
    assert "0644" in refusal(tmp_path / "link")


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_another_users_secret_may_have_any_mode(tmp_path: Path) -> None:
    path = written(tmp_path / "s", mode=0o644)
    os.chown(path, NOBODY, -1)
    assert read_secret(path) == SECRET


def test_a_secret_that_is_too_short_or_too_long_is_refused(tmp_path: Path) -> None:
    assert "has 31 bytes" in refusal(written(tmp_path / "s", SECRET[:31] + b"\n"))
    assert "head -c 32 /dev/urandom" in refusal(written(tmp_path / "s", b""))
    assert f"more than {SECRET_BYTES_MAX} bytes" in refusal(written(tmp_path / "s", b"x" * (SECRET_BYTES_MAX + 1)))


def test_a_missing_secret_or_one_that_is_not_a_file_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "s")
    assert "not a file" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "not a file" in refusal(tmp_path / "pipe")


def test_a_secret_without_read_permission_names_what_a_pod_needs(tmp_path: Path) -> None:
    path, user = written(tmp_path / "s", mode=0o000), os.geteuid()
    os.seteuid(NOBODY if user == 0 else user)
    try:
        assert "set fsGroup" in refusal(path)
    finally:
        os.seteuid(user)
