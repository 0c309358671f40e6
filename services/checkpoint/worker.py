"""Run jobs in worker threads, one after another, and return each result to the main loop.

process.py uses it.  A failed job never ends its thread: the failure is an outcome like any other.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TypeVar

import psutil

from procsv.base.errors import strip_numbers

T = TypeVar("T")
IO_PRIORITY_LAST = 7  # the lowest priority in the best-effort class
JOIN_S_MAX = 2.0  # how long `close` waits for a job; a job that is still stuck then ends with the process


class Outcomes:
    """The results of jobs.  Each result is a call for the main thread to make."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def post(self, call: Callable[[], None]) -> None:
        self._calls.put(call)
        self._wake()

    def deliver(self) -> None:
        """Makes the calls.  Runs on the main thread."""
        while not self._calls.empty():
            self._calls.get()()


class Worker:
    """One thread and its queue."""

    def __init__(self, name: str, outcomes: Outcomes, niceness: int = 0) -> None:
        self._outcomes = outcomes
        self._niceness = niceness  # threads that this one starts inherit it; unless 0, the disk priority is the lowest
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._begun = self._ended = 0  # how many jobs were queued, and how many have ended
        self._failure, self._repeats = "", 0  # the last failure since a success, and how often it was repeated
        self._thread = threading.Thread(target=self._run_jobs, name=name, daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a job is waiting or running."""
        return self._begun > self._ended

    def run_job(self, job: Callable[[], T], then: Callable[[T], None], failed: Callable[[Exception], None]) -> None:
        """Runs `job` on the thread, then calls `then` or `failed` on the main thread."""

        def run() -> None:
            try:
                result = job()
            except Exception as error:  # noqa: BLE001  TensorFlow, disks and user data raise anything
                self._report(error)
                caught = error.with_traceback(None)  # the frames of its traceback would keep a slot mapped
                self._outcomes.post(lambda: failed(caught))
            else:
                self._failure = ""
                self._outcomes.post(lambda: then(result))

        self._begun += 1
        self._jobs.put(run)

    def _report(self, error: Exception) -> None:
        """Logs a failure once with its traceback, and its repetitions ever more rarely.

        So a disk that stays full for a week does not fill the log.
        """
        failure = f"{type(error).__name__}: {strip_numbers(str(error))}"
        if failure != self._failure:
            self._failure, self._repeats = failure, 0
            traceback.print_exception(error, file=sys.stderr)
            return
        self._repeats += 1
        if self._repeats & (self._repeats - 1) == 0:  # 1, 2, 4, 8, …
            print(
                f"procsv checkpoint: the same again ({self._repeats} times by now): {error}",
                file=sys.stderr,
                flush=True,
            )

    def _run_jobs(self) -> None:
        if self._niceness:
            thread = psutil.Process(threading.get_native_id())
            with contextlib.suppress(OSError, psutil.Error):  # a sandbox may not allow it
                thread.nice(self._niceness)
                thread.ionice(psutil.IOPRIO_CLASS_BE, IO_PRIORITY_LAST)
        while (job := self._jobs.get()) is not None:
            job()
            del job
            self._ended += 1

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join(JOIN_S_MAX)
