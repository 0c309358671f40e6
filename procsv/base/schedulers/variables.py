"""Read environment variables that a scheduler has set, and report each kind of mistake.  Pure."""

from __future__ import annotations

from collections.abc import Mapping

from procsv.base.errors import UserError

Environment = Mapping[str, str]


def read_text(environment: Environment, name: str, hint: str) -> str:
    """Returns a variable's value; UserError with `hint` if it is missing or empty."""
    if text := environment.get(name, ""):
        return text
    raise UserError(f"{name} is not in the environment: {hint}")


def read_number(environment: Environment, name: str, hint: str) -> int:
    """Returns a number of 0 or more; UserError with `hint` if it is missing or not a number."""
    text = read_text(environment, name, hint)
    if text.isascii() and text.isdecimal():
        return int(text)
    raise UserError(f"{name} is {text!r} in the environment, which is not a number: {hint}")


def read_port(environment: Environment, name: str) -> int | None:
    """Returns a port number; None if the variable is missing or empty."""
    if not environment.get(name):
        return None
    port = read_number(environment, name, "it is a port, from 1 to 65535")
    if 1 <= port <= 65535:
        return port
    raise UserError(f"{name} is {port} in the environment; a port is a number from 1 to 65535")
