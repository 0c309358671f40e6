"""A directory on a filesystem of its own, whose handles go stale when a test says so.  Takes the rights of root, and /dev/fuse."""

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
    """The filesystem, as long as it is mounted."""

    def __init__(self, directory: Path) -> None:
        """OSError if it cannot be mounted, with what the kernel says of that."""
        self.directory = directory
        command = [sys.executable, stale_server.__file__, str(directory)]
        pipe = subprocess.PIPE
        self._server = subprocess.Popen(command, text=True, cwd="/", stdin=pipe, stdout=pipe, stderr=pipe)
        if not self._hear():
            _, said = self._server.communicate()
            raise OSError(said.strip().rpartition("\n")[2])

    def make_stale(self) -> None:
        """From now on all that is open there, or was looked at, is stale; what is opened anew is not."""
        self._ask("stale")

    def lose(self) -> None:
        """Nothing is found there any more, and all that is asked says that it is stale."""
        self._ask("lose")

    def find(self) -> None:
        """All is there again; what was open stays stale."""
        self._ask("find")

    def make_stale_at(self, text: str) -> None:
        """The same in the middle of the next write to a file whose path has `text` in it."""
        self._ask(f"stale-at {text}")

    def replace_files(self) -> None:
        """From now on each file is replaced once after it was opened, and before it is read."""
        self._ask("replace")

    def met_by(self, pid: int) -> set[str]:
        """The calls of that process that have found something stale."""
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
        """Whatever is still open there fails from now on; the directory is as it was, with all that has been written."""
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
    """Why there can be no such filesystem here; "" if there can."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            StaleMount(Path(directory)).close()
        except OSError as error:
            return f"a filesystem in user space takes /dev/fuse and the rights of root: {error}"
    return ""
