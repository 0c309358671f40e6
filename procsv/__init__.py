"""procsv: a supervisor for TensorFlow training that keeps going when a process does not.

The public names load at first use, so that `import procsv`, and every command that does not train,
starts without TensorFlow.
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from procsv import keras as keras
    from procsv.training.eager.manager import CheckpointManager
    from procsv.training.graph.data_position import keep_position
    from procsv.training.process.drop_in import install, uninstall
    from procsv.training.runtime.program_calls import extend, preempted
    from procsv.training.sessions.hooks import CheckpointSaverHook, StepCounterHook, SummarySaverHook
    from procsv.training.sessions.monitored_session import MonitoredSession, SingularMonitoredSession
    from procsv.training.sessions.scaffold import (
        ChiefSessionCreator,
        Scaffold,
        SessionCreator,
        WorkerSessionCreator,
    )
    from procsv.training.sessions.supervisor import Supervisor
    from procsv.training.sessions.training_session import MonitoredTrainingSession

__version__ = "0.1.0"
__all__ = [
    "CheckpointManager",
    "CheckpointSaverHook",
    "ChiefSessionCreator",
    "MonitoredSession",
    "MonitoredTrainingSession",
    "Scaffold",
    "SessionCreator",
    "SingularMonitoredSession",
    "StepCounterHook",
    "SummarySaverHook",
    "Supervisor",
    "WorkerSessionCreator",
    "__version__",
    "extend",
    "install",
    "keep_position",
    "preempted",
    "uninstall",
]

_HOME = {  # public name -> the module that defines it
    "CheckpointManager": "procsv.training.eager.manager",
    "CheckpointSaverHook": "procsv.training.sessions.hooks",
    "ChiefSessionCreator": "procsv.training.sessions.scaffold",
    "MonitoredSession": "procsv.training.sessions.monitored_session",
    "MonitoredTrainingSession": "procsv.training.sessions.training_session",
    "Scaffold": "procsv.training.sessions.scaffold",
    "SessionCreator": "procsv.training.sessions.scaffold",
    "SingularMonitoredSession": "procsv.training.sessions.monitored_session",
    "StepCounterHook": "procsv.training.sessions.hooks",
    "SummarySaverHook": "procsv.training.sessions.hooks",
    "Supervisor": "procsv.training.sessions.supervisor",
    "WorkerSessionCreator": "procsv.training.sessions.scaffold",
    "extend": "procsv.training.runtime.program_calls",
    "install": "procsv.training.process.drop_in",
    "keep_position": "procsv.training.graph.data_position",
    "preempted": "procsv.training.runtime.program_calls",
    "uninstall": "procsv.training.process.drop_in",
}


if not _typing.TYPE_CHECKING:  # otherwise a type checker would accept any name as one of procsv's

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name == "keras":  # a module of its own, which imports Keras
            return import_module("procsv.keras")
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(import_module(home), name)
        globals()[name] = value  # the next look-up no longer comes here
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, "keras"])  # `keras` is not in __all__: `from procsv import *` does not import Keras
