"""How a Supervisor's session ends: every way out of the block that it is managed in, and the last checkpoint.

Called by the Supervisor.  The error that is raised from the block is the first that was reported; an interrupt goes
through whatever fails besides.  Never leaves the session open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from procsv.ipc.messaging.messages import Reason
from procsv.training.snapshots.training_run import TrainingRun

log = tf.compat.v1.logging

NOT_SAVED = -2  # no global step is this one; -1 stands for "there is none"


@contextlib.contextmanager
def managed(
    supervisor: Any, master: str, config: Any, start_standard_services: bool, close_summary_writer: bool
) -> Iterator[Any]:
    """A session of `supervisor`, stopped and closed at the end of the block."""
    try:
        session = supervisor.prepare_or_wait_for_session(
            master=master, config=config, start_standard_services=start_standard_services
        )
    except BaseException:
        supervisor._abandon()
        raise
    supervisor.coord.free = session.close
    try:
        yield session
    except Exception as error:  # noqa: BLE001  recorded here, raised again by stop()
        supervisor.request_stop(error)
    except BaseException:  # an interrupt, or the way out of the program: nothing else takes its place
        _stop_quietly(supervisor, session, close_summary_writer)
        raise
    try:
        supervisor.stop(close_summary_writer=close_summary_writer)
    finally:
        _close(supervisor, session)


def _stop_quietly(supervisor: Any, session: Any, close_summary_writer: bool) -> None:
    try:
        supervisor.stop(close_summary_writer=close_summary_writer)
    except Exception as error:  # noqa: BLE001  what goes through the block already is what counts
        log.error("procsv: besides, while the session was stopped: %s: %s", type(error).__name__, error)
    finally:
        _close(supervisor, session)


def _close(supervisor: Any, session: Any) -> None:
    supervisor.coord.free = None
    with contextlib.suppress(Exception):
        session.close()


def save_last(run: TrainingRun, reason: Reason, saved_step: int) -> int:
    """A checkpoint of the last state, unless that is step `saved_step`; the step that is saved afterwards."""
    if run.snapshots is None:
        return saved_step
    try:
        step = run.read_step()
    except (RuntimeError, tf.errors.OpError) as error:
        log.warning("procsv: no last checkpoint, the session is not usable any more: %s", error)
        return saved_step
    if step == saved_step:
        return saved_step
    return step if run.save(reason, run.final_save_s()) else saved_step
