"""Mount a filesystem whose handles go stale when a test says so. It needs root and /dev/fuse."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tests.support import stale_server

END_S_MAX = 30.0


class StaleMount:
    """The filesystem while it is mounted."""

    def __init__(self, directory: Path) -> None:
        """Mount it. Raises OSError with the kernel's reason if that fails."""
        self.directory = directory
        command = [sys.executable, stale_server.__file__, str(directory)]
        pipe = subprocess.PIPE
        self._server = subprocess.Popen(command, text=True, cwd="/", stdin=pipe, stdout=pipe, stderr=pipe)
        if not self._hear():
            _, said = self._server.communicate()
            raise OSError(said.strip().rpartition("\n")[2])

    def make_stale(self) -> None:
        """Make every handle that is open or was looked up stale. Handles opened from now on work."""
        self._ask("stale")

    def lose(self) -> None:
        """Make the whole mount stale: nothing is found there any more."""
        self._ask("lose")

    def find(self) -> None:
        """Bring the mount back. Handles that were open stay stale."""
        self._ask("find")

    def make_stale_at(self, text: str) -> None:
        """Do `make_stale` in the middle of the next write to a file whose path contains `text`."""
        self._ask(f"stale-at {text}")

    def replace_files(self) -> None:
        """From now on, replace each file once between its opening and its first read."""
        self._ask("replace")

    def met_by(self, pid: int) -> set[str]:
        """Return the calls of that process that met a stale handle."""
        return set(json.loads(self._ask("met")).get(str(pid), ()))

    def _ask(self, word: str) -> str:
        told = self._pipe(self._server.stdin)
        told.write(f"{word}\n")
        told.flush()
        return self._hear()

    def _hear(self) -> str:
        return self._pipe(self._server.stdout).readline().strip()

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None, "all are pipes"
        return pipe

    def close(self) -> None:
        """Unmount. Open handles fail from now on; the directory keeps all that was written."""
        try:
            _, said = self._server.communicate(timeout=END_S_MAX)
            assert not self._server.returncode, f"the filesystem has ended: {said}"
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.communicate()
            ctypes.CDLL(None).umount2(os.fsencode(self.directory), stale_server.MNT_DETACH)
            raise


@contextlib.contextmanager
def stale_mount(directory: Path) -> Iterator[StaleMount]:
    mount = StaleMount(directory)
    try:
        yield mount
    finally:
        mount.close()


@functools.cache
def why_not() -> str:
    """Return why such a filesystem cannot be mounted here, or "" if it can."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            StaleMount(Path(directory)).close()
        except OSError as error:
            return f"a filesystem in user space takes /dev/fuse and the rights of root: {error}"
    return ""
