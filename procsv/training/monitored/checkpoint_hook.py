"""CheckpointSaverHook: TensorFlow's, saving by snapshot in procsv's monitored sessions.

Its timer, its listeners and the steps at which it saves are TensorFlow's.  In a monitored session of procsv's the state is
captured between two steps and written by the checkpoint service.  The training thread waits for the disk in three cases only:
`save_steps` saves exactly every so many steps, `after_save` of a listener finds the checkpoint on disk, and a checkpoint
after every run is on disk when the run has ended.  Anywhere else, and as the second such hook of a session, it is
TensorFlow's to the letter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.training import basic_session_run_hooks as tf_hooks

if TYPE_CHECKING:
    from procsv.training.monitored.monitored_controller import MonitoredController

log = tf.compat.v1.logging


class CheckpointSaverHook(tf_hooks.CheckpointSaverHook):
    """tf.compat.v1.train.CheckpointSaverHook that does not block training."""

    _controller: MonitoredController | None = None

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Writes graph files and events; saves the first state, unless it comes from a checkpoint."""
        if self._controller is None:
            super().after_create_session(session, coord)
            return
        step = session.run(self._global_step_tensor)
        self._controller.describe_graph(session.graph, self._get_saver(), has_text=self._save_graph_def)
        if self._listeners or not self._controller.is_saved(step):
            self._save(session, step)
        self._timer.update_last_triggered_step(step)

    def _save(self, session: Any, step: Any) -> bool:
        """Saves as the listeners need it; True if one of them asks for a stop."""
        if self._controller is None:
            return bool(super()._save(session, step))
        if self._listeners:
            log.info("Calling checkpoint listeners before saving checkpoint %d...", step)
        for listener in self._listeners:
            listener.before_save(session, step)
        log.info("Saving checkpoints for %d into %s.", step, self._save_path)
        waiting = [listener for listener in self._listeners if _overrides(listener, "after_save")]
        if not waiting:
            every = getattr(self._timer, "_every_steps", None)
            self._controller.save(
                step,
                exactly=every is not None or bool(self._listeners),
                at_once=bool(self._listeners),
                waits=every is not None and every <= self._steps_per_run,
            )
            return False
        if not self._controller.save_and_wait(step):
            log.error("procsv: checkpoint %d is not on disk; its listeners are not called", step)
            return False
        log.info("Calling checkpoint listeners after saving checkpoint %d...", step)
        return _ask(waiting, lambda listener: listener.after_save(session, step))


def _overrides(listener: Any, method: str) -> bool:
    return getattr(type(listener), method, None) is not getattr(tf_hooks.CheckpointSaverListener, method)


def _ask(listeners: list[Any], call: Callable[[Any], Any]) -> bool:
    """Calls all of them; True if one says that training is to stop."""
    should_stop = False
    for listener in listeners:
        if call(listener):
            log.info("A CheckpointSaverListener requested that training be stopped. listener: %s", listener)
            should_stop = True
    return should_stop
