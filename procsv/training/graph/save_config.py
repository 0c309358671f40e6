"""Save configuration of a session: what is kept, and by which backend; decided once, before the graph is finalized.

Called by the Supervisor's constructor.  Adds one op to the graph, the capture, which is for the session alone: neither
the program nor anything that is written of the graph shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import tensorflow as tf
import xxhash

from procsv.base.system.atomic_file import replace_file
from procsv.ipc.messaging.messages import CheckpointPlan, Durable
from procsv.training.graph.capture import Capture
from procsv.training.graph.patches import GrowingGraph, hiding_ops
from procsv.training.graph.saver_ops import Unsupported, read_save_graph
from procsv.training.graph.state import GraphState
from procsv.training.runtime.context import Runtime
from procsv.training.snapshots.cadence import Cadence
from procsv.training.snapshots.restore_client import introduce_plan
from procsv.training.snapshots.source import StateSpec
from procsv.training.snapshots.training_run import SaveSetup

tf1 = tf.compat.v1
log = tf1.logging

SNAPSHOT_SECS_DEFAULT = 0  # as everywhere in TensorFlow's signatures: `--snapshot-secs` decides, which is auto


@dataclass(slots=True)
class SaveConfig:
    """The Saver's plan, and the capture that serves it (None: by the Saver's own op, for the reason `why_not`)."""

    saver: Any
    graph: Any
    global_step: Any
    plan: CheckpointPlan | None
    capture: Capture | None
    why_not: str
    meta: bytes
    snapshot_s: float | None  # None: auto
    saves: bool = False  # whether the session's state is to be saved, by time or when somebody asks, and at its end

    @staticmethod
    def prepare(supervisor: Any, snapshot_secs: Any) -> SaveConfig:
        """What `supervisor` (constructed, its graph finalized) keeps."""
        saver, graph, step = supervisor._saver, supervisor._graph, supervisor._global_step
        save_secs = float(supervisor._save_model_secs or 0.0)
        snapshot_s = snapshot_seconds(snapshot_secs, save_secs, supervisor._runtime)
        if saver is None or not supervisor._save_path:
            return SaveConfig(saver, graph, step, None, None, "there is no Saver", b"", snapshot_s)
        if getattr(saver, "_is_empty", False):
            return SaveConfig(saver, graph, step, None, None, "the Saver is empty", b"", snapshot_s)
        plan = plan_of(saver, supervisor._save_path, save_secs)
        if not save_secs:
            return SaveConfig(saver, graph, step, plan, None, "save_model_secs is 0", b"", snapshot_s)
        return SaveConfig.of(saver, graph, step, plan, snapshot_s)

    @staticmethod
    def of(
        saver: Any, graph: Any, step: Any, plan: CheckpointPlan, snapshot_s: float | None, has_meta: bool = True
    ) -> SaveConfig:
        """What `saver` saves of the finalized `graph`; `has_meta`: its checkpoints have a .meta."""
        capture, why_not, meta = None, "", b""
        try:
            saved = read_save_graph(saver, graph)
            if has_meta:
                with graph.as_default():
                    meta = saver.export_meta_graph().SerializeToString(deterministic=True)
            with GrowingGraph(graph), hiding_ops(graph):
                capture = Capture(saved, graph, step)
        except Unsupported as reason:
            why_not = str(reason)
        return SaveConfig(saver, graph, step, plan, capture, why_not, meta, snapshot_s, saves=True)

    def introduce(self, runtime: Runtime) -> None:
        """Tells the checkpoint service, now and after every restart of it, how checkpoints are named and kept."""
        assert self.plan is not None
        if self.meta:
            self.plan = msgspec.structs.replace(self.plan, meta_path=str(self._lay_meta(runtime)))
        introduce_plan(runtime, self.plan)

    def _lay_meta(self, runtime: Runtime) -> Path:
        """Puts the `.meta` where the service finds it: in shared memory, or where that is full in the run directory.

        Named by its content: every incarnation of a program that nobody changes lays the same file.
        """
        name = f"meta.{xxhash.xxh3_64_hexdigest(self.meta)}"
        path = runtime.paths.shm_dir / name
        try:
            replace_file(path, self.meta, durable=False)
        except OSError:
            path = runtime.paths.run_dir / name
            replace_file(path, self.meta, durable=False)
        return path

    def source_of(self, session: Any) -> GraphState:
        """What is kept of `session`."""
        spec = None
        if self.capture is not None and self.plan is not None:
            saved, capture, has_step = self.capture.saved, self.capture, self.global_step is not None
            spec = StateSpec(
                self.plan, saved.format, saved.sharded, capture.shards, capture.sizes, capture.layout, has_step
            )
        name = Path(self.plan.save_path).name if self.plan is not None else ""
        return GraphState(session, self.saver, self.global_step, spec, self.capture, name)

    def keep(self, on_durable: Callable[[Durable], None]) -> SaveSetup:
        """How a session that begins now is kept."""
        cadence = Cadence(self.snapshot_s, at_most_s=self.plan.save_secs if self.plan is not None else 0.0)
        saves = self.saves and self.plan is not None
        if saves and self.capture is None:
            log.info("procsv: checkpoints are written by the Saver's own op on the training thread: %s", self.why_not)
        elif saves and self.capture is not None:
            log.info("procsv: snapshots through shared memory, %d tensors", len(self.capture.distinct))
        return SaveSetup(saves, cadence, on_durable)


def plan_of(saver: Any, save_path: str, save_secs: float) -> CheckpointPlan:
    """How `saver` names and keeps its checkpoints; duck-typed ones get a Saver's defaults."""
    saver_def = getattr(saver, "saver_def", None)
    hours = float(saver_def.keep_checkpoint_every_n_hours if saver_def else 10000.0)
    next_keep = getattr(saver, "_next_checkpoint_time", 0.0)
    return CheckpointPlan(
        save_path=str(tf.io.gfile.join(save_path)),
        latest_filename="checkpoint",
        save_secs=save_secs,
        max_to_keep=int(saver_def.max_to_keep if saver_def else getattr(saver, "_max_to_keep", 5) or 0),
        keep_every_n_hours=hours,
        pad_step_number=bool(getattr(saver, "_pad_step_number", False)),
        save_relative_paths=bool(getattr(saver, "_save_relative_paths", False)),
        meta_path="",
        keep_from=next_keep - hours * 3600 if next_keep else 0.0,
    )


def snapshot_seconds(wanted: Any, save_secs: float, runtime: Runtime) -> float | None:
    """Seconds between snapshots, None for auto.  Off (None, or 0 by the command line) leaves the checkpoints' own."""
    if wanted is SNAPSHOT_SECS_DEFAULT:
        told_s = runtime.told_snapshot_s
        return None if told_s == "auto" else told_s or save_secs
    if wanted == "auto":
        return None
    if wanted is None or wanted == 0:
        return save_secs
    if not isinstance(wanted, (int, float)) or wanted < 0:
        raise ValueError(
            f'snapshot_secs is {wanted!r}; pass "auto", seconds, or None for no snapshots between checkpoints'
        )
    return float(wanted)
