"""Passage of a task's steps by which a chief on another machine holds them.

Made by the bootstrap of each task that trains and is not the chief, in a run on several machines.  A thread of its own listens, with keys
of its own, so that neither a long call of the program nor a busy watchdog keeps a chief waiting.  Killed anywhere: the steps are over,
and who holds them hears nothing more.  If the thread ends, each hold ends by its limit, and nobody is held again.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections import deque

from procsv.base.clock import Clock
from procsv.base.errors import PeerError, UserError
from procsv.base.system.tree_activity import name_own_thread
from procsv.ipc.messaging.bulk_transport import BulkServer
from procsv.ipc.messaging.curve_transport import KeyPair, told_hold_port
from procsv.ipc.messaging.hold_messages import HoldOffer
from procsv.training.holds.frames import Answer, pack, read_order
from procsv.training.holds.held_steps import HeldSteps
from procsv.training.runtime.step_gate import Passage

QUEUE_MAX = 32  # frames that wait for one chief
POLL_S_MIN = 0.001  # ZeroMQ waits for whole milliseconds


class HeldTask(Passage):
    def __init__(self, clock: Clock) -> None:
        """UserError or OSError if no port can be had."""
        self._clock, self._steps = clock, HeldSteps()
        self._change = threading.Condition()  # of `_steps`
        self._news = deque[tuple[bytes, Answer]]()  # of the training thread, for the other one to send
        self._holder = b""  # whose hold there is
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        keys, client = KeyPair.new(), KeyPair.new()
        try:
            self._server = _bind(keys, client.public, self._wake_fd)
        except BaseException:
            os.close(self._wake_fd)
            raise
        self.offer = HoldOffer(self._server.port, keys.public, client.public, client.secret)
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="procsv-held", daemon=True)
        self._thread.start()

    @property
    def is_between(self) -> bool:
        """Whether no step is under way."""
        with self._change:
            return not self._steps.is_within

    def close(self) -> None:
        """Nobody holds this task any more."""
        self._is_over = True
        os.eventfd_write(self._wake_fd, 1)
        self._thread.join()
        os.close(self._wake_fd)

    # -- the training thread -------------------------------------------------------------------------------
    def open_steps(self) -> None:
        """The steps of this task pass here from now on."""
        with self._change:
            self._steps.open_steps(self._clock.monotonic())

    def _enter(self) -> None:
        with self._change:
            while wait_s := self._steps.wait_s(self._clock.monotonic()):
                self._change.wait(wait_s)
            self._steps.begin_step()

    def _leave(self) -> None:
        with self._change:
            news = self._steps.end_step(self._clock.monotonic())
            if news is None:
                return
            self._news.append((self._holder, news))
        os.eventfd_write(self._wake_fd, 1)

    # -- the thread ----------------------------------------------------------------------------------------
    def _run(self) -> None:
        name_own_thread()  # what it does is not the program's doing
        try:
            while not self._is_over:
                if self._server.wait(self._pause_s()):
                    os.eventfd_read(self._wake_fd)
                while (received := self._server.receive()) is not None:
                    self._hear(*received)
                while self._news:
                    self._send(*self._news.popleft())
        except Exception:  # noqa: BLE001  the task trains on, and its chief learns that it is not held
            traceback.print_exc(file=sys.stderr)
        finally:
            self._server.close()

    def _pause_s(self) -> float | None:
        """Until a hold is over by itself."""
        with self._change:
            now_s = self._clock.monotonic()
            self._steps.look_at_limit(now_s)
            due_s = self._steps.due_s
        return None if due_s is None else max(POLL_S_MIN, due_s - now_s)

    def _hear(self, who: bytes, frames: list[bytes]) -> None:
        try:
            order = read_order(frames)
        except PeerError:
            return  # somebody with our key who speaks another protocol
        with self._change:
            answer = self._steps.ordered(order, self._clock.monotonic())
            self._holder = who
            self._change.notify_all()
        if answer is not None:
            self._send(who, answer)

    def _send(self, who: bytes, answer: Answer) -> None:
        self._server.send(who, pack(answer))  # not taken: the chief is gone, or hears what there is first


def _bind(keys: KeyPair, client_key: str, wake_fd: int) -> BulkServer:
    """At the port that is let through, or at any, if another task of this machine has that."""
    try:
        return BulkServer(told_hold_port(), keys, client_key, wake_fd, QUEUE_MAX)
    except UserError:
        return BulkServer(0, keys, client_key, wake_fd, QUEUE_MAX)
