"""Capture and restore the state of a graph session.

A SaveConfig makes a GraphState when a session begins to train, and a session manager makes one to
restore its session.
"""

from __future__ import annotations

import contextlib
import inspect
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from procsv.base.journal.entries import CapturedByChief, Held
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.training.graph.capture import Capture
from procsv.training.graph.mixing import changes_between_steps
from procsv.training.graph.patches import empty_meanwhile
from procsv.training.graph.restore import feed_from_slot, restore_or_send
from procsv.training.graph.saver_ops import is_harmless, is_restore, writes
from procsv.training.graph.session import CallCounter, adopt_session
from procsv.training.runtime.context import current
from procsv.training.runtime.log import log
from procsv.training.runtime.step_gate import StepGate, gather_s_of
from procsv.training.snapshots.boundary import Boundary
from procsv.training.snapshots.source import Captured, StateSource, StateSpec

tf1 = tf.compat.v1


class GraphState(StateSource):
    """What `saver` saves of `session`."""

    errors: tuple[type[Exception], ...] = (tf.errors.OpError,)

    def __init__(
        self,
        session: Any,
        saver: Any,
        global_step: Any | None = None,
        spec: StateSpec | None = None,
        capture: Capture | None = None,
        save_name: str = "model.ckpt",
        keep_meta: Callable[[], None] = lambda: None,
    ) -> None:
        """Make the source of state.

        `capture` captures what `spec` describes. Without `capture`, the Saver's own op saves, under
        `save_name`. `keep_meta` writes the `.meta` file for the checkpoint service again if the
        file is gone.
        """
        self.session, self.spec = session, spec
        self._saver, self._capture, self._save_name = saver, capture, save_name
        self._keep_meta = keep_meta
        self._gate: StepGate | None = None  # holds the other tasks between two steps during a capture
        self._was_held: bool | None = None  # whether the last capture held all tasks; None: none was taken with a gate
        self._reported_refusal = ""  # the reason, already reported, why the servers do not capture
        self._boundary: Boundary | None = None
        self._is_adopted = False  # whether the session's calls pass the boundary
        self._calls: CallCounter | None = None
        self._calls_before = 0  # without a global step: how many calls led to the restored state
        self._read_step: Callable[[], Any] | None = None
        self._step_tensor: Any = None
        if global_step is not None:
            tensor = self._step_tensor = session.graph.as_graph_element(global_step, allow_operation=False)
            with session.graph.as_default():
                self._read_step = tf1.Session.make_callable(session, tensor)

    def attach(self, boundary: Boundary) -> None:
        self._boundary = boundary
        if self._step_tensor is not None:
            boundary.makes_step = self._makes_step
        self._is_adopted = adopt_session(self.session, boundary)
        if not self._is_adopted:
            log.warning(
                "procsv: %s is not a plain tf.Session; snapshots run without a step boundary",
                type(self.session).__name__,
            )
        elif (runtime := current()) is not None and (gate := runtime.step_gate) is not None:
            if not runtime.connection.start.is_chief:
                boundary.gate = gate
                gate.open_steps()
            elif self.spec is not None and self.spec.plan.is_mixed and not changes_between_steps(self.session.graph):
                self._gate = gate
        self._calls = CallCounter()
        self._calls.start_counting()

    def _makes_step(self, fetches: Any) -> bool:
        return writes(self.session.graph, fetches, self._step_tensor)

    def read_step(self) -> int:
        if self._read_step is None:
            return self._calls_before + self._count_steps()
        return int(np.asarray(self._read_step()).reshape(()))

    def count_on_from(self, step: int) -> bool:
        self._calls_before = max(step, 0)
        return self._read_step is None

    def _count_steps(self) -> int:
        return self._boundary.runs if self._boundary is not None and self._is_adopted else self.count_calls()

    def warm_up(self) -> None:
        if self._capture is not None:
            self._run_capture()  # the first capture of a session costs 10 to 18 ms, and later ones do not

    def capture(self, into: mmap.mmap | None) -> Captured:
        captured = self._run_capture(into) if self._gate is None else self._capture_held(self._gate, into)
        if self._read_step is None:
            captured.step = self.read_step()
        return captured

    def _capture_held(self, gate: StepGate, into: mmap.mmap | None) -> Captured:
        """Capture while `gate` holds the other tasks between two steps.

        If `gate` cannot hold all of them, capture all the same, with `is_exact` False.
        """
        with gate.hold(gather_s_of(self._step_s())) as hold:
            captured = self._run_capture(into)
        captured.is_exact = hold.is_whole
        if hold.is_whole != self._was_held:
            self._was_held = hold.is_whole
            if (runtime := current()) is not None:
                runtime.connection.note_entry(
                    Held(is_exact=hold.is_whole, ms=round(hold.held_s * 1e3, 3), why=hold.why)
                )
        return captured

    def _step_s(self) -> float:
        return self._boundary.times.median_s if self._boundary is not None else 0.0

    def _run_capture(self, into: mmap.mmap | None = None) -> Captured:
        assert self._capture is not None, "nothing is captured of this session"
        captured = self._capture.capture_now(self.session, into)
        is_news, why = self._capture.refusal != self._reported_refusal, self._capture.refusal
        self._reported_refusal = why
        if why and is_news:
            log.warning("procsv: the servers cannot capture their variables, so the chief fetches them: %s", why)
            if (runtime := current()) is not None:
                runtime.connection.note_entry(CapturedByChief(why=why))
        return captured

    def restore(self, state: SlotReader | str) -> None:
        if isinstance(state, str):
            log.info("Restoring parameters from %s", state)
            restore_or_send(self._saver, self.session, state)
        else:
            feed_from_slot(state, self.session, self._saver)

    def may_change(self) -> bool:
        if self._capture is None or self._boundary is None:
            return True
        saved = [item.tensor for item in self._capture.distinct]
        return not is_harmless(self.session.graph, self._boundary.about, saved)

    def has_restored(self) -> bool:
        return self._boundary is not None and is_restore(self._boundary.about, self.session.graph)

    def save_to(self, directory: Path, step: int) -> str:
        named = None if self._read_step is None else step
        with self.session.graph.as_default(), _quiet_saver(self._saver) as options:
            # A kill in here leaves a directory without an index, which nothing takes for a checkpoint.
            prefix = self._saver.save(self.session, str(directory / self._save_name), global_step=named, **options)
        return str(prefix or _checkpoint_in(directory))

    def keep_files(self) -> None:
        self._keep_meta()

    def count_calls(self) -> int:
        return 0 if self._calls is None else self._calls.count

    def is_closed(self, error: Exception) -> bool:
        return isinstance(error, (RuntimeError, tf.errors.CancelledError)) and "closed" in str(error).lower()

    def close(self) -> None:
        if self._calls is not None:
            self._calls.stop_counting()
        if self._capture is not None:
            self._capture.release_session()


@contextlib.contextmanager
def _quiet_saver(saver: Any) -> Iterator[dict[str, Any]]:
    """Yield options for `saver.save` with which the Saver does not list what it saves.

    A Saver that lists a new checkpoint may delete an older one. If the Saver's `save` has no option
    `write_state`, its list is empty during the block instead, so it has nothing to delete.
    """
    options: dict[str, Any] = {"latest_filename": "staged", "write_state": False}
    parameters = inspect.signature(type(saver).save).parameters.values()
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        options = {parameter.name: options[parameter.name] for parameter in parameters if parameter.name in options}
    if "write_state" in options or not isinstance(saver, tf1.train.Saver):
        yield options
        return
    with empty_meanwhile(saver, "_last_checkpoints", "_checkpoints_to_be_deleted"):
        yield options


def _checkpoint_in(directory: Path) -> Path:
    """Return the only checkpoint in `directory`, for Savers whose `save` returns no path."""
    for index in directory.glob("*.index"):
        return index.with_suffix("")
    raise FileNotFoundError(f"the Saver wrote no checkpoint to {directory}")
