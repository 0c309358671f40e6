"""Event streams of a run, for summary writers that are used before, between and after its sessions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from procsv.training.runtime.context import Runtime


class RunSink:
    """An EventSink whose records wait in their stream between sessions; to flush or close one, it connects."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._streams = runtime, runtime.streams

    def open_stream(self, logdir: str, filename_suffix: str) -> str:
        return self._streams.open_stream(logdir, filename_suffix)

    def add_event(self, writer: str, event: bytes) -> None:
        self._streams.add_event(writer, event)

    def flush_stream(self, writer: str, timeout_s: float) -> bool:
        with self._talking(writer):
            return self._streams.flush_stream(writer, timeout_s)

    def close_stream(self, writer: str, timeout_s: float) -> bool:
        with self._talking(writer):
            return self._streams.close_stream(writer, timeout_s)

    def unwritten(self, writer: str) -> int:
        return self._streams.unwritten(writer)

    @contextlib.contextmanager
    def _talking(self, writer: str) -> Iterator[None]:
        if self._runtime.is_running or not self._streams.unwritten(writer):
            yield
            return
        self._runtime.acquire_run()
        try:
            self._runtime.talk()
            yield
        finally:
            self._runtime.release_run()


class HeldSink(RunSink):
    """The sink of one writer that may stay open between sessions: its events continue in the same file, as TensorFlow's do."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._is_held = False

    def hold_run(self) -> None:
        """Keeps the run alive until `close`; under `procsv launch` it lives anyway."""
        if not self._is_held and self._runtime.ends_with_session:
            self._runtime.acquire_run()
            self._is_held = True

    def close_stream(self, writer: str, timeout_s: float) -> bool:
        try:
            return super().close_stream(writer, timeout_s)
        finally:
            if self._is_held:
                self._is_held = False
                self._runtime.release_run()
