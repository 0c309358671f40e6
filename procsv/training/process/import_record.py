"""Record of a trainer's imports, for the standby that imports the same beforehand.

Written by the trainer once it trains, read by the standby (standby.py) and by the next launch (procsv/base/run/loaded.py).  It lists only what is installed: the interpreter's
library, the contents of its site directories, and procsv; never the program's own modules, whose import is part of the
program.  It names the program's own top-level modules apart: a standby must not let an installed library find another
module by such a name.

Libraries read environment variables when they are imported, so the environment counts as it was when TensorFlow's import
began; the standby imports in that environment, then restores its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from procsv.base.run.loaded import Loaded, write_loaded
from procsv.base.run.paths import RunPaths
from procsv.training.process.imported import IMPORTED

KEEP_S = 1.0  # between two looks whether the record is there


class ImportRecord:
    """What this process has imported by now, kept in a file for as long as it lives."""

    def __init__(
        self,
        paths: RunPaths,
        environment: dict[str, str | None],
        program: str,
        command: tuple[str, ...] = (),
        home: str = "",
        attempt: int = 0,
    ) -> None:
        """`program`: top-level name of the target's module, or "".  `home`: its directory."""
        IMPORTED.look()
        modules, own = IMPORTED.names(program)
        self._path, self._due_s, self._is_written = paths.loaded, 0.0, False
        files = IMPORTED.own_files(program)
        self._loaded = Loaded(
            environment=environment,
            modules=tuple(modules),
            own=tuple(own),
            command=command,
            files=files,
            home=home,
            attempt=attempt,
            logdir_id=paths.id,
        )
        if command and paths.own_home is None:
            with contextlib.suppress(OSError):  # then the next launch begins without
                write_loaded(paths.imports, self._loaded)

    def keep(self, now_s: float) -> None:
        """Writes it, unless it is there; where there is no room or no directory, some time later."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + KEEP_S
        with contextlib.suppress(OSError):
            if not (self._is_written and self._path.exists()):
                write_loaded(self._path, self._loaded)
                self._is_written = True


class EnvironmentRecorder:
    """Keeps what the program has changed of its environment by the time it imports TensorFlow.

    A finder that finds nothing and is gone after the first `import tensorflow`.
    """

    def __init__(self) -> None:
        self.changes: dict[str, str | None] = {}  # None: removed
        self._before = dict(os.environ)

    def start_recording(self) -> None:
        if "tensorflow" not in sys.modules:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "tensorflow":
            sys.meta_path.remove(self)
            names = {**self._before, **os.environ}
            self.changes = {n: os.environ.get(n) for n in names if os.environ.get(n) != self._before.get(n)}
        return None
