"""News of the trainer's imports: the watchdog makes a standby of them, and the next launch sees which files have changed.

Told twice, each time on a thread of its own: when the program first asks for the run, so that the standby is there before much
can be lost, and when the first step has ended, with what was imported meanwhile.  Recorded once more when the program has ended.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from procsv.base.run.loaded import changed_files, command_of, list_files, read_own
from procsv.base.system.target import parse_target
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.watchdog_messages import Loaded
from procsv.training.process.import_record import EnvironmentRecorder, ImportRecord
from procsv.training.process.imported import IMPORTED
from procsv.training.runtime.context import Runtime

CONFIGURATION = (".yaml", ".yml", ".toml", ".json", ".ini", ".cfg", ".gin", ".py")  # of files that an argument names


class ImportNews:
    """What this trainer's program has imported, as the run knows it."""

    def __init__(self, runtime: Runtime, start: Start, recorder: EnvironmentRecorder) -> None:
        target, here = parse_target(start.target, Path.cwd()), Path.cwd()
        self._runtime, self._recorder = runtime, recorder
        self._program = target.module.partition(".")[0]
        self._home = target.home(here)
        self._command = command_of(start.target, start.args)
        self._has_standby = start.settings.standby != "off"
        self._pid = os.getpid()
        named = (arg.rpartition("=")[2].lstrip("@") for arg in start.program_args)
        self._configuration = [os.path.abspath(path) for path in named if path.endswith(CONFIGURATION)]
        self._record: ImportRecord | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Before the program runs: what it reads of its configuration is what is there now."""
        for path in self._configuration:
            IMPORTED.note_file(path)
        self._runtime.on_contact = self._runtime.on_ready = self._tell_later

    def _tell_later(self) -> None:
        threading.Thread(target=self._tell, name="procsv-loaded", daemon=True).start()

    def _tell(self) -> None:
        runtime = self._runtime
        with self._lock:
            is_first = self._record is None
            if is_first:
                self._name_changes()
            self._write()
            if not self._has_standby:
                return
            self._keep(runtime.clock.monotonic())
            if is_first:
                runtime.add_tick(self._keep)
            runtime.tell_watchdog(Loaded())

    def finish(self) -> None:
        """The program has ended: adds what it has imported since.  Killed before: those files count as unchanged.

        A file that its arguments name, and that has changed meanwhile, is taken for an output.
        """
        if os.getpid() != self._pid:
            return  # a fork of the program's that has come here by itself: nobody may let go of its copy of the lock
        with self._lock:
            if self._record is not None:
                IMPORTED.forget_changed(self._configuration)
                self._write()

    def _write(self) -> None:
        runtime = self._runtime
        self._record = ImportRecord(
            runtime.paths, self._recorder.changes, self._program, self._command, self._home, runtime.start.incarnation
        )

    def _name_changes(self) -> None:
        """Of the program, since the attempt that has written the record."""
        runtime = self._runtime
        before = read_own(runtime.paths.imports)
        if before.attempt in (0, runtime.start.incarnation) or runtime.paths.own_home is not None:
            return
        if changed := changed_files(before, self._home):
            print(f"procsv: changed since attempt {before.attempt}: {list_files(changed)}", file=sys.stderr)

    def _keep(self, now_s: float) -> None:
        if self._record is not None:
            self._record.keep(now_s)
