"""Decide what the sessions of a graph save, and whether procsv or the Saver's own op saves it.

A SaveConfig holds this decision. The Supervisor's constructor makes one, and so does the controller
of a monitored session, once, when the graph is complete.

If procsv itself saves the state, the SaveConfig adds the capture op to the finalized graph. The op
is hidden: the program does not find it among the graph's operations, and no GraphDef or event file
has it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec
import tensorflow as tf
import xxhash

from procsv.base.cluster import PS
from procsv.base.location import local_path
from procsv.base.run.paths import anchor
from procsv.base.system.atomic_file import replace_file
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.training.graph.capture import Capture
from procsv.training.graph.mixing import may_mix
from procsv.training.graph.patches import growing_graph, hiding_ops
from procsv.training.graph.saver_ops import UnsupportedSaver, read_save_graph
from procsv.training.graph.state import GraphState
from procsv.training.runtime.context import Runtime, current
from procsv.training.runtime.program_calls import FROM_COMMAND_LINE, SnapshotSecs
from procsv.training.snapshots.cadence import Cadence
from procsv.training.snapshots.restore_client import introduce_plan

tf1 = tf.compat.v1
log = tf1.logging

USE_DEFAULT = 0  # TensorFlow's Supervisor.USE_DEFAULT


class SaveConfig(msgspec.Struct):
    """How to capture what a Saver saves, and how to name and keep its checkpoints (the `plan`).

    Without a `capture`, the Saver's own op saves.
    """

    saver: Any
    global_step: Any
    snapshot_s: float | None = None  # None: auto
    plan: CheckpointPlan | None = None
    capture: Capture | None = None
    why_not: str = ""  # why there is no capture
    meta: bytes = b""  # the content of the checkpoints' `.meta` files; b"": they have none
    saves: bool = False  # whether to save the session's state by time, on request and at its end

    @staticmethod
    def from_supervisor(supervisor: Any, snapshot_secs: SnapshotSecs) -> SaveConfig:
        """Return what a constructed `supervisor` with a finalized graph saves."""
        saver, step = supervisor._saver, supervisor._global_step
        save_secs = float(supervisor._save_model_secs or 0.0)
        snapshot_s = snapshot_seconds(snapshot_secs, save_secs, supervisor._runtime)
        if saver is None or not supervisor._save_path or getattr(saver, "_is_empty", False):
            return SaveConfig(saver=saver, global_step=step, snapshot_s=snapshot_s)
        plan = plan_of(saver, supervisor._save_path, save_secs, is_mixed=may_mix(supervisor._graph, os.environ))
        if not save_secs and isinstance(saver, tf1.train.Saver) and saver.saver_def is None:
            # The program builds the Saver when it saves.
            return SaveConfig(saver=saver, global_step=step, snapshot_s=snapshot_s, plan=plan)
        return SaveConfig.from_graph(saver, supervisor._graph, step, plan, snapshot_s)

    @staticmethod
    def from_graph(
        saver: Any, graph: Any, step: Any, plan: CheckpointPlan, snapshot_s: float | None, has_meta: bool = True
    ) -> SaveConfig:
        """Return what `saver` saves of the finalized `graph`.

        If `has_meta`, its checkpoints have `.meta` files.
        """
        config = SaveConfig(saver=saver, global_step=step, snapshot_s=snapshot_s, plan=plan, saves=True)
        try:
            saved = read_save_graph(saver, graph)
            if has_meta:
                with graph.as_default():
                    config.meta = saver.export_meta_graph().SerializeToString(deterministic=True)
            with growing_graph(graph), hiding_ops(graph):
                config.capture = Capture(saved, graph, step, has_servers=_has_servers(), hosts=_hosts_of_servers())
        except UnsupportedSaver as reason:
            config.why_not = str(reason)
        return config

    def introduce(self, runtime: Runtime) -> None:
        """Tell the checkpoint service, and each later one, how to name and keep checkpoints."""
        assert self.plan is not None
        if self.meta:
            self.plan = msgspec.structs.replace(self.plan, meta_path=str(self._write_meta(runtime)))
        introduce_plan(runtime, self.plan)

    def _write_meta(self, runtime: Runtime) -> Path:
        """Write the `.meta` file where the service finds it, and return its path.

        The file is in shared memory, or in the run directory if shared memory is full. Its name has
        a hash of its content, so all attempts of an unchanged program write the same file.
        """
        name = f"meta.{xxhash.xxh3_64_hexdigest(self.meta)}"
        path = runtime.connection.paths.shm_dir / name
        try:
            replace_file(path, self.meta, durable=False)
        except OSError:
            path = runtime.connection.paths.run_dir / name
            replace_file(path, self.meta, durable=False)
        return path

    def _keep_meta(self) -> None:
        """Write the `.meta` file again if its directory was removed during the run."""
        if self.plan is not None and self.plan.meta_path and not (path := Path(self.plan.meta_path)).exists():
            with contextlib.suppress(OSError):  # the directory is still missing; the worker calls again in some seconds
                replace_file(path, self.meta, durable=False)

    def source_of(self, session: Any) -> GraphState:
        """Return the source of state for `session`."""
        spec = self.capture.spec(self.plan) if self.capture is not None and self.plan is not None else None
        name = Path(self.plan.save_path).name if self.plan is not None else ""
        return GraphState(session, self.saver, self.global_step, spec, self.capture, name, self._keep_meta)

    def cadence(self) -> Cadence | None:
        """Return the spacing of a new session's snapshots; None if its state is not saved."""
        if not self.saves or self.plan is None:
            return None
        if self.capture is None:
            log.info("procsv: checkpoints are written by the Saver's own op on the training thread: %s", self.why_not)
        else:
            log.info("procsv: snapshots through shared memory, %d tensors", len(self.capture.distinct))
        return Cadence(self.snapshot_s, at_most_s=self.plan.save_secs)


def _has_servers() -> bool:
    """Return whether the parameter servers are tasks of this process's run."""
    runtime = current()
    return runtime is not None and PS in runtime.connection.start.cluster


def _hosts_of_servers() -> list[str]:
    """Return the machine of each server by index, in a run on several machines; otherwise none."""
    runtime = current()
    if runtime is None or not runtime.connection.start.is_spread:
        return []
    return [address.rpartition(":")[0] for address in runtime.connection.start.cluster.get(PS, [])]


def plan_of(saver: Any, save_path: str, save_secs: float, *, is_mixed: bool = False) -> CheckpointPlan:
    """Return how `saver` names and keeps checkpoints.

    An object that only acts like a Saver gets TensorFlow's defaults.
    """
    saver_def = getattr(saver, "saver_def", None)
    hours = float(saver_def.keep_checkpoint_every_n_hours if saver_def else 10000.0)
    next_keep = getattr(saver, "_next_checkpoint_time", 0.0)
    path = str(tf.io.gfile.join(save_path))
    local = local_path(path)
    is_anchored = local is None or local.is_absolute()
    return CheckpointPlan(
        save_path=anchor(path),  # absolute: the program may change its working directory
        latest_filename="checkpoint",
        save_secs=save_secs,
        max_to_keep=int(saver_def.max_to_keep if saver_def else getattr(saver, "_max_to_keep", 5) or 0),
        keep_every_n_hours=hours,
        pad_step_number=bool(getattr(saver, "_pad_step_number", False)),
        save_relative_paths=not is_anchored or bool(getattr(saver, "_save_relative_paths", False)),
        meta_path="",
        keep_from=next_keep - hours * 3600 if next_keep else 0.0,
        is_mixed=is_mixed,
    )


def snapshot_seconds(wanted: SnapshotSecs, save_secs: float, runtime: Runtime) -> float | None:
    """Return the seconds between snapshots; None for auto.

    If snapshots are off (None or 0), they are taken only for checkpoints, every `save_secs`.
    """
    if wanted is FROM_COMMAND_LINE or wanted is USE_DEFAULT:
        told_s = runtime.connection.told_snapshot_s
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
