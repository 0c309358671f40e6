"""MonitoredSession and its family: TensorFlow's classes, on procsv's services.

A program can import this module instead of tensorflow.python.training.monitored_session or
basic_session_run_hooks: it has all their names, including those with an underscore. Names that
procsv does not replace are TensorFlow's own.
"""

from tensorflow.python.training import basic_session_run_hooks as tf_hooks
from tensorflow.python.training import monitored_session as tf_monitored
from tensorflow.python.training.monitored_session import _MonitoredSession, _WrappedSession

from procsv.training.sessions.hooks import CheckpointSaverHook, StepCounterHook, SummarySaverHook
from procsv.training.sessions.monitored_session import MonitoredSession, SingularMonitoredSession
from procsv.training.sessions.scaffold import ChiefSessionCreator, Scaffold, SessionCreator, WorkerSessionCreator
from procsv.training.sessions.session_layers import _CoordinatedSession, _HookedSession, _RecoverableSession
from procsv.training.sessions.training_session import USE_DEFAULT, MonitoredTrainingSession

__all__ = [
    "USE_DEFAULT",
    "CheckpointSaverHook",
    "ChiefSessionCreator",
    "MonitoredSession",
    "MonitoredTrainingSession",
    "Scaffold",
    "SessionCreator",
    "SingularMonitoredSession",
    "StepCounterHook",
    "SummarySaverHook",
    "WorkerSessionCreator",
    "_CoordinatedSession",
    "_HookedSession",
    "_MonitoredSession",
    "_RecoverableSession",
    "_WrappedSession",
]


def __getattr__(name: str) -> object:
    for module in (tf_monitored, tf_hooks):
        if hasattr(module, name):
            value: object = getattr(module, name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
