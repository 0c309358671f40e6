"""News of the trainer's imports, so that the watchdog makes a standby of them.

Told twice, each time on a thread of its own: when the program first asks for the run, so that the standby is there before much
can be lost, and when the first step has ended, with what was imported meanwhile.
"""

from __future__ import annotations

import threading

from procsv.base.run.loaded import command_of
from procsv.ipc.messaging.messages import Loaded
from procsv.ipc.messaging.start import Start
from procsv.training.process.import_record import EnvironmentRecorder, ImportRecord
from procsv.training.runtime.context import Runtime


class ImportNews:
    """What this trainer's program has imported, as the run knows it."""

    def __init__(self, runtime: Runtime, start: Start, recorder: EnvironmentRecorder, program: str) -> None:
        """`program`: top-level name of the target's module, or ""."""
        self._runtime, self._recorder, self._program = runtime, recorder, program
        self._command = command_of(start.target, start.args)
        self._record: ImportRecord | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        self._runtime.on_contact = self._runtime.on_ready = self._tell_later

    def _tell_later(self) -> None:
        threading.Thread(target=self._tell, name="procsv-loaded", daemon=True).start()

    def _tell(self) -> None:
        runtime = self._runtime
        with self._lock:
            is_first = self._record is None
            self._record = ImportRecord(runtime.paths, self._recorder.changes, self._program, self._command)
            self._record.keep(runtime.clock.monotonic())
            if is_first:
                runtime.add_tick(self._keep)
            runtime.tell_watchdog(Loaded())

    def _keep(self, now_s: float) -> None:
        if self._record is not None:
            self._record.keep(now_s)
