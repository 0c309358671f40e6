"""The deputy: the parameter server that captures what all servers hold while there is no chief.

On a thread of the first server's process (process/serving.py).  It carries out the plan that the chief has left (deputy_plan.py), by a session
of its own that sees no task but the servers, and fills one of the chief's slots in the chief's name: the checkpoint service finds it there.
It has the turn meanwhile (runtime/capture_turn.py), so that a chief begins only behind it.

A server that has lost its variables fails the call, and with it the plan: nothing is captured by it any more, until a chief lays another.
Killed at any moment: the slot stays WRITING, nobody reads it, and the kernel lets go of the turn.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import tensorflow as tf

from procsv.base.clock import Clock
from procsv.ipc.shm.slot_file import NoRoom, SlotPool, SlotWriter
from procsv.ipc.shm.slot_header import HEADER_BYTES, scan_slots
from procsv.ipc.shm.slot_state import SlotInfo
from procsv.training.graph.deputy_hold import DeputyHold
from procsv.training.graph.deputy_plan import DeputyPlan
from procsv.training.graph.server_capture import Orders
from procsv.training.graph.variable_views import array_of
from procsv.training.runtime.bounded_call import call_within
from procsv.training.runtime.capture_turn import DeputyTurn
from procsv.training.runtime.context import Runtime
from procsv.training.snapshots.slot_fill import fill_and_publish
from procsv.training.snapshots.source import Captured, CaptureLost, Elsewhere

tf1 = tf.compat.v1

CLOSE_S_MAX = 2.0
TAKE_S_MAX = 10.0  # a server that is frozen so long is ended by the watchdog
SERVERS = "/job:ps"


class Deputy:
    """What this server does for a chief that is away."""

    def __init__(self, runtime: Runtime, master: str) -> None:
        """`master`: the target of this process's own server."""
        self._runtime, self._master = runtime, master
        self._clock: Clock = runtime.clock
        self._turn = DeputyTurn(runtime.paths)
        self._last_s = 0.0  # when it has captured last
        self._has_told = False  # that it captures while this chief is away
        self._plan_id: tuple[int, int] | None = None  # of the file that `_work` is made of, or that has failed
        self._work: _Work | None = None
        self._hold: DeputyHold | None = None
        if runtime.start.settings.consistent_snapshots:
            self._hold = DeputyHold(runtime)

    def look(self) -> None:
        """Captures if there is no chief and it is time to.  Errors end the plan, and are said once."""
        if not self._turn.try_take():
            self._has_told = False
            if self._hold is not None:
                self._hold.chief_seen()
            return
        try:
            now_s, pace = self._clock.monotonic(), self._turn.pace()
            if now_s >= max(pace.due_s, self._last_s + pace.interval_s) and self._has_plan():
                self._last_s = now_s
                self._capture()
        except (CaptureLost, NoRoom):  # a chief is back, or there is no memory: at the next look
            pass
        except Exception as error:  # noqa: BLE001  whatever it is, the server serves on
            self._drop()
            print(f"procsv: nothing is captured while there is no chief: {error}", flush=True)
        finally:
            self._turn.let_go()

    def _has_plan(self) -> bool:
        """Whether there is a plan that works, as far as is known."""
        path = self._runtime.paths.deputy_plan
        try:
            info = path.stat()
            if (found := (info.st_ino, info.st_mtime_ns)) != self._plan_id:
                self._drop()
                self._plan_id = found
                self._work = _Work(msgspec.msgpack.decode(path.read_bytes(), type=DeputyPlan), self._master)
        except FileNotFoundError:
            self._drop()
            self._plan_id = None
        return self._work is not None

    def _drop(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.close()

    def _capture(self) -> None:
        assert self._work is not None
        start, shm_dir = self._runtime.start, self._runtime.paths.shm_dir
        mine = (info for info in scan_slots(shm_dir) if info.task == start.chief and info.run == start.run)
        newest = next(mine, None)
        if newest is None:  # whose number it would follow is not known
            return
        pool = SlotPool(shm_dir, start.run, newest.task, newest.incarnation)
        try:
            pool.reserve(self._work.size, 1)
            writer = pool.begin_snapshot()
            info = None if writer is None else self._work.fill(writer, newest, self._turn, self._hold)
        finally:
            pool.close()
        if info is not None and not self._has_told:
            self._has_told = True
            self._runtime.note("captured_by_server", step=info.step, chief=newest.incarnation)


class _Work:
    """A plan with its session."""

    def __init__(self, plan: DeputyPlan, master: str) -> None:
        self._plan = plan
        self.size = plan.spec.layout.end - HEADER_BYTES + plan.spec.toc_size  # bytes in a slot
        with tf.Graph().as_default() as graph:
            tf1.import_graph_def(tf1.GraphDef.FromString(plan.graph), name="")
        config = tf1.ConfigProto(device_filters=[SERVERS])  # else it would wait for the chief
        session = self._session = tf1.Session(master, graph=graph, config=config)
        order = graph.get_tensor_by_name(plan.order)

        def call_of(names: tuple[str, ...]) -> Any:
            return session.make_callable([graph.get_tensor_by_name(name) for name in names], [order])

        self._take = call_of((*plan.takes, *plan.fetched.values()))
        self._fetched: list[Any] = []
        self._orders = Orders(self._take_within, call_of(plan.copies), plan.by_server)

    def _take_within(self, data: bytes) -> list[Any]:
        answers = call_within(lambda: self._take(data), TAKE_S_MAX, "capturing on the servers")
        taken = len(self._plan.takes)
        self._fetched = [array_of(value) for value in answers[taken:]]
        return list(answers[:taken])

    def close(self) -> None:
        with contextlib.suppress(tf.errors.OpError, TimeoutError):
            call_within(self._session.close, CLOSE_S_MAX, "closing the deputy's session")

    def fill(self, writer: SlotWriter, newest: SlotInfo, turn: DeputyTurn, hold: DeputyHold | None) -> SlotInfo | None:
        """Fills and publishes the slot; None if no step has been made since `newest`."""
        plan = self._plan
        holds = hold is not None and plan.can_be_held and plan.spec.plan.is_mixed
        try:
            with hold.holding(turn.pace().step_s) if hold is not None and holds else contextlib.nullcontext() as held:
                step, copy = self._orders.capture(writer.memory, turn.is_wanted)  # type: ignore[arg-type]  # it is a slot's
            if step <= newest.step:
                writer.abandon()
                return None
            arrays, by_servers = list[Any](plan.shapes), frozenset(range(len(plan.shapes))) - plan.fetched.keys()
            for number, array in zip(plan.fetched, self._fetched, strict=True):
                arrays[number] = array
            captured = Captured(arrays, [number in by_servers for number in range(len(arrays))], step)
            captured.is_exact = held is not None and held.is_whole
            captured.elsewhere = Elsewhere(by_servers, copy)
            return fill_and_publish(writer, plan.spec, captured, newest.sequence + 1, plan.target)
        except BaseException:
            writer.abandon()
            raise
