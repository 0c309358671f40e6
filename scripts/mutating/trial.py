"""Try mutants: each worker has a copy of the tree, in which one file is broken at a time and the
tests are run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.mutating.mutants import Mutant
from scripts.mutating.rooms import Room

MORE_TIME, MORE_S = 5.0, 30.0  # beyond the tests' time on the unchanged code; a slower mutant counts as killed


class Copy:
    """A copy of what git tracks, with its own temporary directory."""

    def __init__(self, root: Path, place: Path) -> None:
        self.root = place
        place.mkdir()
        names = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout
        subprocess.run(
            ["cp", "--parents", "-P", "-t", str(place), "--", *os.fsdecode(names).rstrip("\0").split("\0")],
            cwd=root,
            check=True,
        )
        # Check bytecode by the source's hash, so that even a change right after another is seen.
        compiling = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "."]
        subprocess.run(compiling, cwd=place, check=True)

    @contextlib.contextmanager
    def broken(self, mutant: Mutant) -> Iterator[tuple[str, str]]:
        """Apply the change within the block; yield the lines that differ, before and after."""
        path = self.root / mutant.path
        source = path.read_text()
        mutated = mutant.apply(source)
        path.write_text(mutated)
        try:
            pairs = zip(source.splitlines(), mutated.splitlines(), strict=False)
            yield next(((old.strip(), new.strip()) for old, new in pairs if old != new), ("", ""))
        finally:
            path.write_text(source)

    def passes(self, room: Room, timeout_s: float | None) -> bool:
        """Whether the room's tests pass within `timeout_s`; end whatever they have started."""
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *room.tests],
            cwd=self.root,
            env={
                **os.environ,
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONPATH": str(self.root),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(timeout_s) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def baseline_s(self, room: Room) -> float:
        """Return how long the room's tests take on the unchanged code; SystemExit if they fail
        there.
        """
        begun_s = time.monotonic()
        if not self.passes(room, None):
            raise SystemExit(f"scripts/mutate: these tests fail on the code as it is: {' '.join(room.tests)}")
        return time.monotonic() - begun_s
