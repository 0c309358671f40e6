"""Read the options of a command from a TOML file.

`--config FILE` names the file; without it, the table `[tool.procsv]` of ./pyproject.toml is read.
launch.py uses this module: `load_config` is the callback of `--config`. Values from the file
replace the defaults of the options, so an option on the command line overrides the file. An unknown
key is an error, and the message names the nearest option. If procsv ignored a misspelt option
silently, a night of training might be lost.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from procsv.base.errors import UserError
from procsv.cli.invocation import variable

if TYPE_CHECKING:
    import click

OF_LAUNCH = "PROCSV_LAUNCH_"
_NOT_IN_A_FILE = ("config", "help", "help-all")


def load_config(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    path, table = (Path(value), "") if value else (Path("pyproject.toml"), "tool.procsv")
    if value or path.is_file():
        defaults = _check(_read_table(path, table), ctx, path, table)
        ctx.default_map = {**(ctx.default_map or {}), **defaults}
    return value


def _read_table(path: Path, table: str) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--config {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not TOML: {error}") from error
    if not table and "tool" in content:  # --config names a pyproject.toml
        table = "tool.procsv"
        loose = next((key for key, value in content.items() if not isinstance(value, dict)), None)
        if loose is not None:  # otherwise it would be silently ignored
            raise UserError(
                f"{path}: {loose} is outside [tool.procsv]; in a file with [tool…], only that table is read"
            )
    for key in filter(None, table.split(".")):
        content = content.get(key, {})
        if not isinstance(content, dict):
            raise UserError(f"{path}: [{table}] is not a table")
    return content


def _check(content: dict[str, Any], ctx: click.Context, path: Path, table: str) -> dict[str, Any]:
    """Check `content` and return it with click's parameter names as keys.

    A key of `content` is spelled like the flag on the command line, with - or _ between its words.
    """
    options = (param for param in ctx.command.params if param.param_type_name == "option")
    flags = {flag: param for param in options if (flag := param.opts[0].lstrip("-")) not in _NOT_IN_A_FILE}
    found = {}
    for key, value in content.items():
        param = flags.get(key.replace("_", "-"))
        if param is None or param.name is None:
            near = difflib.get_close_matches(key.replace("_", "-"), flags, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(sorted(flags))}"
            where = f"[{table}] of {path}" if table else str(path)
            raise UserError(f"{where}: there is no option {key!r}; {hint}")
        if param.multiple and isinstance(value, str):
            value = [value]
        single = value if param.multiple and isinstance(value, list) else [value]
        if any(isinstance(one, dict | list) or (isinstance(one, bool) and not _is_flag(param)) for one in single):
            raise UserError(f"{path}: {key} takes one value, as --{key} does on the command line")
        _check_value(param, ctx, value, f"{key} in {path}")
        found[param.name] = value
    return found


def check_environment(ctx: click.Context, environment: Mapping[str, str]) -> None:
    """Raise UserError for a PROCSV_LAUNCH_… variable that matches no option, because it may be
    misspelt.
    """
    known = {variable("launch", param) for param in ctx.command.params}
    for name in environment:
        if name.startswith(OF_LAUNCH) and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ": unset it"
            raise UserError(f"the environment has {name}, which is not an option of launch{hint}")


def _is_flag(param: click.Parameter) -> bool:
    return bool(getattr(param, "is_flag", False))


def _check_value(param: click.Parameter, ctx: click.Context, value: object, where: str) -> None:
    """Convert the value once here, so that the message of an error names the file."""
    import click

    try:
        param.type_cast_value(ctx, value)
    except click.BadParameter as error:
        raise click.BadParameter(error.message, ctx, param, param_hint=where) from error
