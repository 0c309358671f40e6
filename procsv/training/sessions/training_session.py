"""Provide MonitoredTrainingSession, which makes a MonitoredSession with the usual hooks.

Programs call it. The hooks, their order and their defaults are TensorFlow's.
"""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_coordinator_context
from tensorflow.python.training import monitored_session as tf_monitored

from procsv.training.runtime.context import current
from procsv.training.runtime.program_calls import FROM_COMMAND_LINE, SnapshotSecs
from procsv.training.sessions.attach import is_logdir_free
from procsv.training.sessions.hooks import CheckpointSaverHook, StepCounterHook, SummarySaverHook
from procsv.training.sessions.monitored_session import MonitoredSession
from procsv.training.sessions.scaffold import ChiefSessionCreator, Scaffold, WorkerSessionCreator

tf1 = tf.compat.v1
log = tf1.logging


class _UseDefault:
    """Marks an argument that is not given.

    It is equal to TensorFlow's marker, because programs may pass that marker, too. Unlike
    TensorFlow's marker, it prints as `USE_DEFAULT` in signatures.
    """

    def __eq__(self, other: object) -> bool:
        return other is self or other is tf_monitored.USE_DEFAULT

    def __hash__(self) -> int:
        return hash(tf_monitored.USE_DEFAULT)

    def __repr__(self) -> str:
        return "USE_DEFAULT"


USE_DEFAULT: Any = _UseDefault()

_COLLECTIVE = ("CollectiveAllReduceStrategy", "CollectiveAllReduceStrategyV1", "MultiWorkerMirroredStrategy")


def MonitoredTrainingSession(
    master: Any = "",
    is_chief: bool = True,
    checkpoint_dir: Any = None,
    scaffold: Any = None,
    hooks: Any = None,
    chief_only_hooks: Any = None,
    save_checkpoint_secs: Any = USE_DEFAULT,
    save_summaries_steps: Any = USE_DEFAULT,
    save_summaries_secs: Any = USE_DEFAULT,
    config: Any = None,
    stop_grace_period_secs: float = 120,
    log_step_count_steps: Any = 100,
    max_wait_secs: float = 7200,
    save_checkpoint_steps: Any = USE_DEFAULT,
    summary_dir: Any = None,
    save_graph_def: bool = True,
    *,
    snapshot_secs: SnapshotSecs = FROM_COMMAND_LINE,
    final_checkpoint: bool = True,
) -> MonitoredSession:
    """Return a MonitoredSession with the usual hooks for training.

    It takes the arguments of `tf.compat.v1.train.MonitoredTrainingSession`. Under `procsv launch`,
    a chief without `checkpoint_dir` uses the run's logdir if its graph has a global step and no
    other graph has trained there. `snapshot_secs` and `final_checkpoint` work as in
    MonitoredSession.
    """
    summaries = _one_of(save_summaries_steps, save_summaries_secs, (100, None))
    checkpoints = _one_of(save_checkpoint_steps, save_checkpoint_secs, (None, 600))
    scaffold = scaffold or Scaffold()
    more: dict[str, Any] = {
        "stop_grace_period_secs": stop_grace_period_secs,
        "snapshot_secs": FROM_COMMAND_LINE if snapshot_secs == USE_DEFAULT else snapshot_secs,
        "final_checkpoint": final_checkpoint,
    }
    context = distribute_coordinator_context.get_current_worker_context()
    if context:
        checkpoints = _fit_for_collectives(context, checkpoints, summaries)
        ignored = _ignored_subdirectory(context)
        own = [*(hooks or ()), *((chief_only_hooks or ()) if context.is_chief else ())]
        own += _summary_hooks(
            _directory_for(summary_dir or checkpoint_dir, context.should_save_summary, ignored),
            log_step_count_steps,
            summaries,
            scaffold,
        )
        place = _directory_for(checkpoint_dir, context.should_checkpoint, ignored)
        own += _checkpoint_hooks(place, checkpoints, scaffold, save_graph_def)
        log.info("all_hooks %r", own)
        creator = context.session_creator(
            scaffold, config=config, checkpoint_dir=checkpoint_dir, max_wait_secs=max_wait_secs
        )
        return MonitoredSession(creator, own, **more)
    if not is_chief:
        worker = WorkerSessionCreator(scaffold, master, config, max_wait_secs)
        return MonitoredSession(worker, list(hooks or ()), **more)
    launched, graph = current(), tf1.get_default_graph()
    if checkpoint_dir is None and launched is not None and tf1.train.get_global_step(graph) is not None:
        checkpoint_dir = launched.connection.start.logdir if is_logdir_free(launched, graph) else None
    own = list(chief_only_hooks or ())
    own += _summary_hooks(summary_dir or checkpoint_dir, log_step_count_steps, summaries, scaffold)
    own += _checkpoint_hooks(checkpoint_dir, checkpoints, scaffold, save_graph_def)
    chief = ChiefSessionCreator(scaffold, master, config, checkpoint_dir)
    return MonitoredSession(chief, [*own, *(hooks or ())], **more)


def _one_of(steps: Any, secs: Any, default: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return steps and seconds, with None in place of an argument that is not given.

    If neither is given, return `default`.
    """
    if steps == USE_DEFAULT and secs == USE_DEFAULT:
        return default
    return (None if steps == USE_DEFAULT else steps), (None if secs == USE_DEFAULT else secs)


def _is_on(every: Any) -> bool:
    return bool(every and every > 0)


def _summary_hooks(directory: Any, log_steps: Any, every: tuple[Any, Any], scaffold: Any) -> list[Any]:
    if not directory:
        return []
    steps, secs = every
    found: list[Any] = []
    if _is_on(log_steps):
        found.append(StepCounterHook(output_dir=directory, every_n_steps=log_steps))
    if _is_on(steps) or _is_on(secs):
        found.append(SummarySaverHook(scaffold=scaffold, save_steps=steps, save_secs=secs, output_dir=directory))
    return found


def _checkpoint_hooks(directory: Any, every: tuple[Any, Any], scaffold: Any, save_graph_def: bool) -> list[Any]:
    steps, secs = every
    if not directory or not (_is_on(steps) or _is_on(secs)):
        return []
    return [
        CheckpointSaverHook(
            directory, save_steps=steps, save_secs=secs, scaffold=scaffold, save_graph_def=save_graph_def
        )
    ]


# -- workers of a distribution strategy ------------------------------------------------------------
def _ignored_subdirectory(context: Any) -> str | None:
    """Return the subdirectory for what this worker saves; None if it need not save.

    Under some strategies all workers must take part in saving, although only the chief's files are
    useful. Nobody reads the files in this subdirectory.
    """
    if type(context._strategy).__name__ not in _COLLECTIVE:
        return None
    return f"tmp_{context.task_type}_{context.task_id}" if context.task_type else "tmp"


def _directory_for(directory: Any, is_ours: bool, ignored: str | None) -> Any:
    """Return where this worker writes; None if it writes nothing.

    `is_ours`: the strategy has chosen this worker to write into `directory`.
    """
    if not directory or is_ours:
        return directory
    return os.path.join(directory, ignored) if ignored else None


def _fit_for_collectives(context: Any, checkpoints: tuple[Any, Any], summaries: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return when to save `checkpoints`, changed so that all workers save at the same steps.

    Workers that save at different steps would wait for each other forever.
    """
    if _ignored_subdirectory(context) is None:
        return checkpoints
    if summaries[1]:
        log.warning(
            "Collective ops may run out of sync with`save_summaries_secs`, please use `save_summaries_steps` instead."
        )
    if not checkpoints[1]:
        return checkpoints
    log.warning(
        "Collective ops may deadlock with `save_checkpoints_secs` please use `save_checkpoint_steps` instead. "
        "Clearing `save_checkpoint_secs` and setting `save_checkpoint_steps` to 1000 now."
    )
    return 1000, None
