"""Which run a Supervisor belongs to: that of `procsv launch`, or one of its own.

Called by constructors.  Starts nothing: services start with the first session, or the first flush of events.
"""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from procsv.training.host import LocalHost
from procsv.training.runtime import Runtime, check_logdir, current


def attach(logdir: Any, may_save: bool) -> tuple[Runtime | None, Any]:
    """The runtime for a supervisor with `logdir`, and the logdir to use; no runtime where there is no logdir.

    UserError under `procsv launch` if `logdir` is another than the run's.
    """
    launched = current()
    if launched is not None:
        if logdir is None:
            return launched, launched.start.logdir
        check_logdir(launched, os.fspath(logdir))
        return launched, logdir
    if not logdir:
        return None, logdir
    if "://" in str(logdir):
        tf.compat.v1.logging.warning(
            "procsv: %s is not a local directory; it is used as TensorFlow's own Supervisor would", logdir
        )
        return None, logdir
    host = LocalHost(os.fspath(logdir), may_save)
    return Runtime(host.places, host.roles, None, host), logdir
