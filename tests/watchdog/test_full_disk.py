"""A real program on a full disk is waited for, and its state in memory is named."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from procsv.training.runtime.last_words import tells_of_no_room
from tests.support.launched import launched
from tests.support.small_places import small_filesystem

pytestmark = pytest.mark.fault

WRITES = """
import sys
with open(sys.argv[1], "wb") as file:
    for _ in range(16):
        file.write(bytes(2**20))
        file.flush()
print("written", flush=True)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a filesystem")
def test_a_program_that_finds_no_room_restarts_when_there_is_some_and_has_not_failed(
    tmp_path: Path,
) -> None:
    program, place = tmp_path / "train.py", tmp_path / "place"
    program.write_text(WRITES)
    place.mkdir()
    inside = small_filesystem(place, 28 * 2**20, filler=20 * 2**20)
    options = ("--early-failures", "1", "--max-failures", "1", str(program), str(place / "data"))
    with launched(place / "logdir", *options, within=inside) as run:
        run.wait_for("the line", lambda: " waits for room" in run.said())
        # The filesystem is in the run's own mount namespace.
        root = Path(f"/proc/{run.process.pid}/root")
        (root / (place / "data").relative_to("/")).unlink()
        (root / (place / "filler").relative_to("/")).unlink()
        assert run.wait_end() == 0
        said = run.said()
    assert said.count(" waits for room") == 1
    assert "\nwritten" in said


def test_full_disk_errors_are_recognized_by_their_number_anywhere_in_the_chain() -> None:
    for number in (errno.ENOSPC, errno.EDQUOT):
        outer = RuntimeError("the callback failed")
        outer.__cause__ = OSError(number, os.strerror(number))
        assert tells_of_no_room(outer)
    assert not tells_of_no_room(OSError(errno.EACCES, "no"))
    assert not tells_of_no_room(None)


class ResourceExhaustedError(Exception):
    """Looks like TensorFlow's."""


def test_tensorflows_full_disk_error_is_recognized_by_its_message() -> None:
    assert tells_of_no_room(ResourceExhaustedError("run/events.1; No space left on device"))
    assert not tells_of_no_room(ResourceExhaustedError("OOM when allocating tensor"))
