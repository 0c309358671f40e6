"""procsv: a supervisor for TensorFlow graph-mode training that keeps going when a process does not.

The public names load at first use, so that `import procsv`, and every command that does not train, starts without
TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from procsv.training.drop_in import install, uninstall
    from procsv.training.supervisor import Supervisor

__version__ = "0.1.0"
__all__ = ["Supervisor", "__version__", "install", "uninstall"]

_HOME = {  # public name -> the module that defines it
    "Supervisor": "procsv.training.supervisor",
    "install": "procsv.training.drop_in",
    "uninstall": "procsv.training.drop_in",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value  # the next look-up no longer comes here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
