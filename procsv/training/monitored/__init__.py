"""MonitoredSession and its family: TensorFlow's classes, on procsv's services.

Has the names of tensorflow.python.training.monitored_session and of the hooks that are here, those with an underscore that
libraries use, too: a program can import this module in the place of that one.
"""

from tensorflow.python.training.monitored_session import _MonitoredSession, _WrappedSession

from procsv.training.monitored.checkpoint_hook import CheckpointSaverHook
from procsv.training.monitored.monitored_session import MonitoredSession, SingularMonitoredSession
from procsv.training.monitored.scaffold import ChiefSessionCreator, Scaffold, SessionCreator, WorkerSessionCreator
from procsv.training.monitored.sessions import _CoordinatedSession, _HookedSession, _RecoverableSession
from procsv.training.monitored.summary_hooks import StepCounterHook, SummarySaverHook
from procsv.training.monitored.training_session import USE_DEFAULT, MonitoredTrainingSession

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
