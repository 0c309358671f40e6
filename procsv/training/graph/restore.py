"""A new trainer's state: asked of the checkpoint service, fed from memory or read from a checkpoint.

`SessionManager` is TensorFlow's with one step replaced: where the state comes from.  A state in memory is fed to
the outputs of the Saver's own restore ops: no file is read, and resource variables share the mapped memory
until their first update.  It never starts from step 0 when there are checkpoints that cannot be used.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import tensorflow as tf

from procsv.base.errors import PeerError, UserError
from procsv.base.failpoints import declare, failpoint
from procsv.base.identity import CHECKPOINT
from procsv.base.text import is_remote
from procsv.ipc.messaging.messages import Restore, Restored, RestoreFrom
from procsv.ipc.shm.heartbeat import Phase
from procsv.ipc.shm.slot_file import SlotReader, scan_slots
from procsv.ipc.shm.slot_index import TensorEntry, unpack_strings
from procsv.training.graph.graph_diff import Kinds, compare, kinds_of, saved_in
from procsv.training.graph.saver_ops import RestoreGraph, Unsupported, read_restore_graph
from procsv.training.graph.server_files import restore_or_send
from procsv.training.runtime.context import Runtime

tf1 = tf.compat.v1

ANSWER_S_MAX = 600.0  # the service may first have to save what the last trainer left

declare("trainer.restore")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a session's state came from, for the journal."""

    source: str  # memory, checkpoint, fresh
    path: str
    step: int


class CannotFeed(Exception):
    """The state in memory does not fit this graph's restore ops; its checkpoint may.  The text says why."""


def ask_newest(runtime: Runtime, durable_only: bool) -> RestoreFrom:
    """The checkpoint service's answer to "which state shall I start from?".  UserError if none of them is good."""
    try:
        received = runtime.link.ask(CHECKPOINT, Restore(durable_only), ANSWER_S_MAX)
    except TimeoutError:
        raise UserError(
            f"the checkpoint service did not say within {ANSWER_S_MAX:.0f} s which state to start from; "
            f"see {runtime.paths.logs}/checkpoint.*.log",
            exit_code=70,
        ) from None
    except PeerError as lost:
        raise UserError(f"nobody can say which state to start from: {lost}", exit_code=70) from None
    answer = cast(RestoreFrom, received.body)
    if answer.error:
        raise UserError(answer.error, exit_code=70)
    runtime.sequence = max(runtime.sequence, answer.sequence)
    return answer


def restore_into(runtime: Runtime, session: Any, saver: Any) -> Origin:
    """Puts the newest state into `session`; source "fresh" if there is none to put."""
    runtime.phase = Phase.RESTORE
    failpoint("trainer.restore")
    answer = ask_newest(runtime, durable_only=False)
    if answer.source == "memory":
        try:
            _feed_from_slot(Path(answer.path), session, saver)
        except (CannotFeed, PeerError) as why:
            tf1.logging.warning("procsv: the state in memory is restored by way of its checkpoint: %s", why)
            answer = ask_newest(runtime, durable_only=True)
    if answer.source == "checkpoint":
        tf1.logging.info("Restoring parameters from %s", answer.path)
        restore_or_send(saver, session, answer.path)
    if answer.source != "fresh":
        saver.set_last_checkpoints_with_time([(path, written_at(path)) for path in answer.all_paths])
    runtime.tell_checkpoint(Restored(answer.source, answer.path, answer.step))
    return Origin(answer.source, answer.path, answer.step)


def written_at(path: str) -> float:
    """When checkpoint `path` was written (Unix seconds), as the Saver's list wants it; 0.0 if it is gone."""
    if is_remote(path):
        try:
            return float(tf.io.gfile.stat(f"{path}.index").mtime_nsec) / 1e9
        except tf.errors.OpError:
            return 0.0
    there = Path(path)
    is_pattern = "?" in there.name  # shards of the first format
    first_format: list[Path] = list(there.parent.glob(there.name)) if is_pattern else [there]
    for file in (Path(f"{path}.index"), *first_format):
        with contextlib.suppress(OSError):
            return float(file.stat().st_mtime)
    return 0.0


def _feed_from_slot(path: Path, session: Any, saver: Any) -> None:
    try:
        graph = read_restore_graph(saver, session.graph)
    except Unsupported as why:
        raise CannotFeed(str(why)) from None
    info = next((i for i in scan_slots(path.parent) if i.path == path), None)
    if info is None:
        raise PeerError(f"slot {path.name} is gone")
    reader = SlotReader(info)
    try:
        _check(kinds_of(graph, saver, session.graph), reader)
        feeds = _match(graph, reader)
    except BaseException:
        reader.close()
        raise
    # The lock goes, the mapping stays: variables share its memory until their first update.  The service knows
    # (Restored) that this slot is never to be written again.
    tf1.Session.run(session, session.graph.get_operation_by_name(graph.restore_op), feeds)
    reader.let_go()


def _check(wanted: Kinds, reader: SlotReader) -> None:
    """CannotFeed names what the snapshot lacks, or has in another shape or type."""
    changes = compare(wanted, saved_in(e for shard in reader.contents.shards for e in shard))
    if changes:
        raise CannotFeed(f"the graph has changed since: {changes}")


def _match(graph: RestoreGraph, reader: SlotReader) -> dict[Any, Any]:
    """An array for each restore output."""
    entries = {(e.key, e.slice): e for shard in reader.contents.shards for e in shard}
    return {tensor: _array(entries[key], tensor, reader) for key, tensor in graph.outputs.items()}


def _array(entry: TensorEntry, tensor: Any, reader: SlotReader) -> Any:
    dtype = tensor.dtype.base_dtype
    if dtype.is_quantized:
        raise CannotFeed(f"{entry.key} is {dtype.name}, which cannot be fed")
    if entry.dtype == "string":
        values = unpack_strings(reader.map[entry.offset : entry.offset + entry.size])
        strings = np.empty(len(values), dtype=object)
        strings[:] = values
        return strings.reshape(entry.shape)
    numpy_dtype = np.dtype(dtype.as_numpy_dtype)
    count = entry.size // numpy_dtype.itemsize
    return np.frombuffer(reader.map, numpy_dtype, count, entry.offset).reshape(entry.shape)


class SessionManager(tf1.train.SessionManager):  # type: ignore[name-defined]  # tensorflow is untyped
    """TensorFlow's session manager, restoring the newest state that there is, in memory or on disk."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.runtime: Runtime | None = None  # None: as TensorFlow's
        self.origin: Origin | None = None

    def _restore_checkpoint(
        self,
        master: str,
        saver: Any = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: Any = None,
    ) -> tuple[Any, bool]:
        self.origin = None
        if self.runtime is None or saver is None or not checkpoint_dir or checkpoint_filename_with_path:
            return cast(
                tuple[Any, bool],
                super()._restore_checkpoint(
                    master,
                    saver,
                    checkpoint_dir=checkpoint_dir,
                    checkpoint_filename_with_path=checkpoint_filename_with_path,
                    wait_for_checkpoint=wait_for_checkpoint,
                    max_wait_secs=max_wait_secs,
                    config=config,
                ),
            )
        self._target = master
        session = tf1.Session(master, graph=self._graph, config=config)
        try:
            self._run_saved_model_initializers(session)
            self.origin = restore_into(self.runtime, session, saver)
            waited_until_s = time.monotonic() + max_wait_secs
            while self.origin.source == "fresh" and wait_for_checkpoint and time.monotonic() < waited_until_s:
                tf1.logging.info("Waiting for checkpoint to be available.")
                self._pause(min(self._recovery_wait_secs, max(0.0, waited_until_s - time.monotonic())))
                self.origin = restore_into(self.runtime, session, saver)
        except BaseException:
            session.close()
            raise
        return session, self.origin.source != "fresh"

    def _run_saved_model_initializers(self, session: Any) -> None:
        initializers = self._graph.get_collection("saved_model_initializers")
        if initializers:
            session.run(initializers)

    def _pause(self, seconds: float) -> None:
        threading.Event().wait(seconds)
