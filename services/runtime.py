"""Run a service process: take its lock, bind its socket, keep its heartbeat and loop over messages.

The skeleton is the same for every service; the service itself makes the decisions.  The watchdog
starts the process by exec (procsv.ipc.messaging.start).  The process ends once its service is
finished: after Finish, or, if the watchdog has died (end-of-file on the lifeline), after tidying
up.  Services ignore terminal and termination signals: they outlive the trainer, and the watchdog
ends them by message.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from procsv.base.clock import Clock
from procsv.base.errors import UserError
from procsv.base.run.paths import make_private_dir
from procsv.base.signals import IGNORED, PASSED_ON, STOPS
from procsv.base.system.locks import DirectoryLock, FileLock
from procsv.base.system.output import keep_output_going
from procsv.base.system.stack_dump import arm_log
from procsv.base.system.system_clock import SystemClock
from procsv.faults.pending import Injected
from procsv.ipc.messaging.endpoint import Address, Received, ServerEndpoint
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.watchdog_messages import Inject
from procsv.ipc.messaging.zmq_transport import Server, Waiter, new_context
from procsv.ipc.shm.heartbeat import Phase
from procsv.ipc.shm.heartbeat_file import HeartbeatWriter

TICK_S_MAX = 1.0  # the longest iteration of the loop
RESTORE_S = 1.0  # how often the loop checks that its socket, lock and heartbeat still exist
# Messages handled in one iteration, before the heartbeat, the service's own work and the lifeline get their turn.
HEARD_MAX = 1000
PREDECESSOR_WAIT_S = 60.0  # how long to wait for an earlier process of this service to release the lock


class Service(Protocol):
    """The callbacks that a service implements.  All calls come from the main thread."""

    def handle_message(self, received: Received) -> None:
        """Handles a new message.

        Acknowledges the message (tools.server.acknowledge) once it has taken effect.
        """

    def tick(self, now_s: float) -> float:
        """Called after every batch of messages and at least once a second.

        Returns the seconds until the service wants the next call.
        """

    def orphaned(self) -> None:
        """Called once, when the watchdog is dead.

        The service saves, tidies up, and finishes within the grace period.  If the watchdog was an
        observer, the program runs on, and the service finishes only after it.
        """

    def is_finished(self) -> bool: ...

    def close(self) -> None:
        """The last call: release everything."""


class Tools(msgspec.Struct):
    """The objects that the skeleton hands to its service."""

    start: Start
    clock: Clock
    server: ServerEndpoint
    heartbeat: HeartbeatWriter
    wake: Callable[[], None]  # makes the loop tick soon; any thread may call it


def serve(start: Start, make: Callable[[Tools], Service]) -> int:
    """Runs a service to its end and returns the exit code."""
    keep_output_going()
    arm_log()
    # A signal to all processes of a run is for the watchdog to act on.
    for number in (*STOPS, *PASSED_ON, *IGNORED):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    clock, paths = SystemClock(), start.paths
    places = [DirectoryLock(path, is_shared=True) for path in (paths.run_dir, paths.shm_dir)]
    for place in places:
        make_private_dir(place.path)
        place.relock()
    heartbeat = HeartbeatWriter(paths.heartbeat(start.task, start.incarnation))
    heartbeat.phase = Phase.CONNECT
    lock = FileLock(paths.service_lock(start.task))
    _wait_for_lock(lock, start, clock, heartbeat)
    context = new_context()
    try:
        server = Server(
            context, paths.service_socket(start.task), Address(start.run, start.task, start.incarnation), clock
        )
    except (OSError, UserError) as error:
        print(f"procsv {start.task}: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
    wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    heartbeat.phase = Phase.IDLE
    tools = Tools(
        start=start, clock=clock, server=server, heartbeat=heartbeat, wake=lambda: os.eventfd_write(wake_fd, 1)
    )
    service = make(tools)
    try:
        _loop(service, tools, server, lock, places, wake_fd)
    finally:
        service.close()
        server.close()
        heartbeat.close()
        context.term()
        lock.release()
    return 0


def _wait_for_lock(lock: FileLock, start: Start, clock: Clock, heartbeat: HeartbeatWriter) -> None:
    """Waits for the lock until the previous process of this service has released it.

    That process may still be saving what a killed trainer left.  SystemExit after
    PREDECESSOR_WAIT_S, or if our watchdog dies.
    """
    deadline_s = clock.monotonic() + PREDECESSOR_WAIT_S
    pause = threading.Event()
    while not _try_lock(lock, start, clock):
        # The watchdog has died.  This process has served nobody and has nothing to save, so it ends.
        if start.lifeline_fd >= 0 and _is_cut(start.lifeline_fd):
            raise SystemExit(f"procsv {start.task}: the process that supervises the run is dead")
        heartbeat.beat(clock.monotonic())
        if clock.monotonic() > deadline_s:
            holder = lock.holder()
            raise SystemExit(f"procsv {start.task}: process {holder.pid if holder else '?'} still holds {lock.path}")
        pause.wait(0.02)


def _try_lock(lock: FileLock, start: Start, clock: Clock) -> bool:
    """Tries to take the lock.

    False if another process holds it, if its directory is full, or if its directory is missing
    until the watchdog recreates it.
    """
    with contextlib.suppress(OSError):
        return lock.try_acquire(f"procsv {start.task} service", clock.wall())
    return False


def _restore_files(server: Server, lock: FileLock, places: Sequence[DirectoryLock], heartbeat: HeartbeatWriter) -> None:
    """Recreates the socket, lock and heartbeat if something has removed them.

    Leaves files missing whose directory is missing, too, until the watchdog recreates the directory.
    """
    with contextlib.suppress(OSError, UserError):
        for place in places:
            place.relock()
        heartbeat.renew_file()
        lock.relock()
        if not server.is_in_place():
            server.bind()


def _loop(
    service: Service, tools: Tools, server: Server, lock: FileLock, places: Sequence[DirectoryLock], wake_fd: int
) -> None:
    waiter = Waiter()
    waiter.register(server)
    waiter.register(wake_fd)
    lifeline, injected, restore_s = tools.start.lifeline_fd, Injected(), 0.0
    if lifeline >= 0:
        waiter.register(lifeline)
    while not service.is_finished():
        now_s = tools.clock.monotonic()
        tools.heartbeat.refused = server.refused
        tools.heartbeat.beat(now_s)
        injected.end_expired(now_s)
        if now_s >= restore_s:
            restore_s = now_s + RESTORE_S
            _restore_files(server, lock, places, tools.heartbeat)
        pause_s = min(TICK_S_MAX, max(0.0, service.tick(now_s)))
        if service.is_finished():
            break
        ready = waiter.wait(pause_s)
        if wake_fd in ready:
            os.eventfd_read(wake_fd)
        if lifeline in ready and _is_cut(lifeline):
            waiter.remove(lifeline)
            service.orphaned()
        for _ in range(HEARD_MAX):
            if (received := server.receive()) is None:
                break
            if isinstance(received.body, Inject):
                server.acknowledge(received)
                injected.inject(received.body, now_s)
                injected.moment()
            else:
                service.handle_message(received)
        server.resend_due()


def _is_cut(lifeline: int) -> bool:
    """Returns whether the other end of the lifeline is closed.

    Nobody writes to a lifeline, so it becomes readable only when its other end is closed.
    """
    return bool(select.select([lifeline], [], [], 0)[0]) and os.read(lifeline, 1) == b""
