"""One call of `procsv`, as its commands know it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import click


@dataclass(slots=True)
class Invocation:
    """Made by main.py.  `after`: what is left to do once the command line is done with, for the exit code."""

    asked_at: float  # Unix time
    after: Callable[[], int] | None = None


def invocation() -> Invocation | None:
    """That of the command under way; None where a command is called by itself."""
    found = click.get_current_context().find_root().obj
    return found if isinstance(found, Invocation) else None


def variable(command: str, param: click.Parameter) -> str:
    """In which an option of `command` can stand in the environment; "" where it cannot."""
    if not isinstance(param, click.Option) or param.multiple or param.is_eager:
        return ""
    return f"PROCSV_{command}_{param.opts[-1].lstrip('-')}".replace("-", "_").upper()
