"""A real summary service, its run and the trainer's end of the link, for the tests of this folder."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from tensorboard.backend.event_processing import event_file_loader
from tensorboard.compat.proto import event_pb2

from procsv.base.identity import SUMMARY, TRAINER
from procsv.base.outcome import Exit
from procsv.base.run.paths import RunPaths
from procsv.base.system.processes import Child, spawn
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging.endpoint import Address, Received
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.messages import Hello
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.summary_messages import Written
from procsv.ipc.messaging.watchdog_messages import Finish, FlushDone
from procsv.ipc.messaging.zmq_transport import Client, Waiter, new_context
from procsv.training.runtime.event_streams import EventStreams

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 300.0


def event(number: int, size: int = 0) -> bytes:
    """Return a serialized Event with its number in it."""
    return bytes(event_pb2.Event(step=number, wall_time=1.0, file_version="x" * size).SerializeToString())


def event_files(logdir: Path) -> list[Path]:
    return sorted(logdir.glob("events.out.tfevents.*"))


def records_in(path: Path) -> list[bytes]:
    """Return the records as TensorBoard reads them, after checking and dropping the file's first."""
    loaded = list(event_file_loader.RawEventFileLoader(str(path)).Load())
    if loaded:
        assert event_pb2.Event.FromString(loaded.pop(0)).file_version == "brain.Event:2"
    return loaded


def steps_in(*paths: Path) -> list[int]:
    return [event_pb2.Event.FromString(record).step for path in paths for record in records_in(path)]


class Run:
    """One run: its directories, its lifeline and its summary services in sequence."""

    def __init__(self, base: Path, run: str = "run") -> None:
        self.logdir = base / "logs"
        self.paths = RunPaths(self.logdir, base / "run", base / "shm")
        self.clock = SystemClock()
        self.run = run
        self.incarnation = 0
        self.service: Child | None = None
        self._lifeline, self._our_end = os.pipe()
        base.mkdir(exist_ok=True)

    def start(self, failpoints: str = "", **environment: str) -> Child:
        """Start a service. The previous one must be dead."""
        self.incarnation += 1
        where = (str(self.logdir), str(self.paths.run_dir), str(self.paths.shm_dir))
        start = Start(
            SUMMARY,
            self.run,
            self.incarnation,
            *where,
            lifeline_fd=self._lifeline,
            settings=LaunchSettings(grace_s=5.0),
        )
        more = {"PYTHONPATH": str(ROOT), "PROCSV_FAILPOINTS": failpoints} | environment
        self.service = spawn(
            [sys.executable, *start.argv()[1:]],
            env=start.environment({**os.environ, **more}),
            log=self.log,
            pass_fds=(self._lifeline,),
        )
        return self.service

    @property
    def log(self) -> Path:
        return self.paths.run_dir.parent / "summary.log"

    def rss_mib(self) -> float:
        assert self.service is not None
        return float(psutil.Process(self.service.pid).memory_info().rss / 2**20)

    def has_ended(self) -> bool:
        """Return whether the service is dead, though not yet reaped."""
        assert self.service is not None
        return self.service.has_ended()

    def cut_lifeline(self) -> None:
        os.close(self._our_end)
        self._our_end = -1

    def kill(self) -> Exit:
        assert self.service is not None
        self.service.signal(signal.SIGKILL)
        return self.wait_ended()

    def wait_ended(self) -> Exit:
        assert self.service is not None
        waiter = Waiter()
        waiter.register(self.service.pidfd)
        assert waiter.wait(DEADLINE_S), f"the service has not ended; it said: {self.log.read_text()}"
        ended = self.service.reap()
        self.service = None
        return ended

    def close(self) -> None:
        if self.service is not None:
            self.kill()
        for fd in (self._lifeline, self._our_end):
            if fd >= 0:
                os.close(fd)


class Trainer:
    """A trainer's link thread as a loop that the test turns until it has seen what it waits for."""

    def __init__(self, run: Run, incarnation: int = 1) -> None:
        self.run = run
        self.pid = os.getpid()  # the pid in its Hello
        self.received: list[Received] = []
        self.streams = EventStreams(run.clock)
        self.streams.attach_to_run(run.paths.shm_dir, str(incarnation), run.paths.run_dir)
        self._context = new_context()
        self.client = Client(
            self._context, run.paths.service_socket(SUMMARY), Address(run.run, TRAINER, incarnation), run.clock
        )
        self._waiter = Waiter()
        self._waiter.register(self.client)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._waiter.register(self._wake_fd)
        self.streams.on_need = lambda: os.eventfd_write(self._wake_fd, 1)

    def turn(self, timeout_s: float = 0.02) -> None:
        """Run one round of the loop."""
        if self.client.resend_due():
            self.client.send_reliable(Hello(self.pid))
            self.streams.on_connected()
        for message in self.streams.messages(self.run.clock.monotonic()):
            self.client.send(message)
        if self._wake_fd in self._waiter.wait(timeout_s):
            os.eventfd_read(self._wake_fd)
        while (received := self.client.receive()) is not None:
            self.received.append(received)
            if isinstance(received.body, Written):
                self.streams.on_written(received.body)
            self.client.acknowledge(received)

    def until(self, what: Callable[[], Any], deadline_s: float = DEADLINE_S) -> None:
        """Turn until `what` is true. Each round waits for news."""
        end_s = self.run.clock.monotonic() + deadline_s
        while not what():
            assert self.run.clock.monotonic() < end_s, f"waited in vain; the service: {self.run.log.read_text()}"
            self.turn()

    @property
    def unwritten(self) -> int:
        """Return the number of records not known to be in their files."""
        return self.streams.unwritten()

    def until_written(self) -> None:
        self.until(lambda: self.unwritten == 0)

    def answered(self, kind: type[Message]) -> list[Received]:
        return [received for received in self.received if isinstance(received.body, kind)]

    def finish(self) -> Exit:
        """Ask the service to end, as the run's owner does. Return how it ended."""
        self.client.send_reliable(Finish())
        self.until(lambda: self.answered(FlushDone))
        return self.run.wait_ended()

    def close(self) -> None:
        self.client.close(0)
        self._context.term()
        os.close(self._wake_fd)


class TurningTrainer:
    """A trainer whose loop runs on its own thread, so that the test's thread can wait in `flush`."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._turn, name="link")

    def _turn(self) -> None:
        while not self._ending.is_set():
            self._trainer.turn()

    def __enter__(self) -> EventStreams:
        self._thread.start()
        return self._trainer.streams

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
