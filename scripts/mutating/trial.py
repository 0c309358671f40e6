"""Trial of mutants: a copy of the tree for each worker, in which one file is broken at a time and the tests are run."""

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

MORE_TIME, MORE_S = 5.0, 30.0  # than the tests take on the code as it is; a mutant that takes more is counted as killed


class Copy:
    """One copy of what git tracks, with its own temporary directory."""

    def __init__(self, root: Path, place: Path) -> None:
        self.root = place
        place.mkdir()
        names = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout
        subprocess.run(
            ["cp", "--parents", "-P", "-t", str(place), "--", *os.fsdecode(names).rstrip("\0").split("\0")],
            cwd=root,
            check=True,
        )
        # Bytecode that is checked by its source's hash: a change is seen however fast it follows another.
        compiling = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "."]
        subprocess.run(compiling, cwd=place, check=True)

    @contextlib.contextmanager
    def broken(self, mutant: Mutant) -> Iterator[tuple[str, str]]:
        """Has the change in it for the block; the lines that differ: before, after."""
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
        """Whether the room's tests pass within `timeout_s`; whatever they have started ends with them."""
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
        """How long the room's tests take on the code as it is; SystemExit if they fail there."""
        begun_s = time.monotonic()
        if not self.passes(room, None):
            raise SystemExit(f"scripts/mutate: these tests fail on the code as it is: {' '.join(room.tests)}")
        return time.monotonic() - begun_s
