"""Record a trainer's imports, so that a standby can import the same in advance.

The trainer writes the record; the standby (standby.py) and the next launch
(procsv/base/run/loaded.py) read it.  It lists only what is installed: the interpreter's library,
the contents of its site directories, and procsv.  It never lists the program's own modules, because
importing them is part of the program.  It names the program's own top-level modules separately: in
a standby, an installed library must not find another module by such a name.

Libraries read environment variables during their import, so the record has the environment from the
start of TensorFlow's import.  The standby imports in that environment, then restores its own.

The record is written, and the watchdog notified, twice, each time on a separate thread.  The first
time is when the program first asks for the run, so that the standby is ready before much can be
lost.  The second is at the end of the first step, with the imports since.  The record is written
once more when the program has ended.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from procsv.base.run.loaded import LoadedModules, changed_files, command_of, list_files, read_own, write_loaded
from procsv.base.run.paths import RunPaths
from procsv.base.system.target import parse_target
from procsv.ipc.messaging import watchdog_messages
from procsv.ipc.messaging.start import Start
from procsv.training.process.imported import IMPORTED
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.log import say

KEEP_S = 1.0  # between two checks that the record exists
CONFIGURATION = (".yaml", ".yml", ".toml", ".json", ".ini", ".cfg", ".gin", ".py")  # of files that an argument names


class ImportRecord:
    """The imports of this process so far, and the file that keeps them while the process lives."""

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
        IMPORTED.note_modules()
        modules, own = IMPORTED.names(program)
        self._path, self._due_s, self._is_written = paths.loaded, 0.0, False
        files = IMPORTED.own_files(program)
        self._loaded = LoadedModules(
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
            with contextlib.suppress(OSError):  # then the next launch starts without it
                write_loaded(paths.imports, self._loaded)

    def keep_written(self, now_s: float) -> None:
        """Writes the record if it is missing; retries later if there is no room or no directory."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + KEEP_S
        with contextlib.suppress(OSError):
            if not (self._is_written and self._path.exists()):
                write_loaded(self._path, self._loaded)
                self._is_written = True


class EnvironmentRecorder:
    """Records the program's environment changes up to its import of TensorFlow.

    It is a finder that finds nothing.  It stays in `sys.meta_path` when it has finished: a search
    that goes on in that list, on this thread or another, would skip a finder if this one left.
    """

    def __init__(self) -> None:
        self.changes: dict[str, str | None] = {}  # None: removed
        self._before = dict(os.environ)
        self._has_recorded = False

    def start_recording(self) -> None:
        if "tensorflow" not in sys.modules:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "tensorflow" and not self._has_recorded:
            self._has_recorded = True
            now = {n: os.environ.get(n) for n in [*self._before, *os.environ]}  # another thread may remove one
            self.changes = {n: value for n, value in now.items() if value != self._before.get(n)}
        return None


class ImportNews:
    """Reports the imports of this trainer's program to the run."""

    def __init__(self, runtime: Runtime, start: Start, recorder: EnvironmentRecorder) -> None:
        target, here = parse_target(start.target, Path.cwd()), Path.cwd()
        self._runtime, self._recorder = runtime, recorder
        self._program = target.module.partition(".")[0]
        self._home = target.home(here)
        self._command = command_of(start.target, start.args)
        self._has_standby = start.settings.standby != "off"
        named = (arg.rpartition("=")[2].lstrip("@") for arg in start.program_args)
        self._configuration = [os.path.abspath(path) for path in named if path.endswith(CONFIGURATION)]
        self._record: ImportRecord | None = None
        self._lock = threading.Lock()

    def note_configuration(self) -> None:
        """Notes configuration files before the program runs, with their present contents."""
        for path in self._configuration:
            IMPORTED.note_file(path)
        self._runtime.listen_for_imports(self._tell_later)

    def _tell_later(self) -> None:
        threading.Thread(target=self._tell, name="procsv-loaded", daemon=True).start()

    def _tell(self) -> None:
        runtime = self._runtime
        with self._lock:
            is_first = self._record is None
            if is_first:
                self._name_changes()
            self._write_record()
            if not self._has_standby:
                return
            self._keep(runtime.clock.monotonic())
            if is_first:
                runtime.connection.add_tick(self._keep)
            runtime.connection.tell_watchdog(watchdog_messages.Loaded())

    def note_last_imports(self) -> None:
        """Records the imports since the last record; call it when the program has ended.

        Without this, as after a kill, later changes of these files go unnoticed.  A file that the
        program's arguments name, and that has changed, is considered an output.
        """
        with self._lock:
            if self._record is not None:
                IMPORTED.forget_changed(self._configuration)
                self._write_record()

    def _write_record(self) -> None:
        runtime = self._runtime
        self._record = ImportRecord(
            runtime.connection.paths,
            self._recorder.changes,
            self._program,
            self._command,
            self._home,
            runtime.connection.start.incarnation,
        )

    def _name_changes(self) -> None:
        """Prints the program's changes since the attempt that wrote the record."""
        runtime = self._runtime
        before = read_own(runtime.connection.paths.imports)
        if before.attempt in (0, runtime.connection.start.incarnation) or runtime.connection.paths.own_home is not None:
            return
        if changed := changed_files(before, self._home):
            say(f"changed since attempt {before.attempt}: {list_files(changed)}")

    def _keep(self, now_s: float) -> None:
        if self._record is not None:
            self._record.keep_written(now_s)
