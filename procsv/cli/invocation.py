"""Describe one call of `procsv` to its commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import click


@dataclass(slots=True)
class Invocation:
    """Made by main.py.

    A command may set `after`. main.py calls it when click has finished, and exits with its result.
    """

    asked_at: float  # when the user called procsv, in Unix seconds
    after: Callable[[], int] | None = None


def invocation() -> Invocation | None:
    """Return the invocation of the current command.

    Return None if main.py has not called the command, as in a test.
    """
    found = click.get_current_context().find_root().obj
    return found if isinstance(found, Invocation) else None


def variable(command: str, param: click.Parameter) -> str:
    """Return the environment variable that sets an option of `command`; "" if none does."""
    if not isinstance(param, click.Option) or param.multiple or param.is_eager:
        return ""
    return f"PROCSV_{command}_{param.opts[-1].lstrip('-')}".replace("-", "_").upper()
