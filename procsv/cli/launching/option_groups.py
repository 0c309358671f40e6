"""Options as `procsv launch` declares them: in groups, each option with its place in the help.

Used by run_options.py and failure_options.py.
"""

from __future__ import annotations

from typing import Any

import click

from procsv.cli.usage.grouped_help import CommonOption, OptionGroup
from procsv.cli.values import Duration

__all__ = ["OptionGroup", "count", "option", "seconds"]


def option(*names: str, is_common: bool = False, **more: Any) -> click.Option:  # noqa: ANN401  click's own
    """`is_common`: --help shows it, and not --help-all alone."""
    return (CommonOption if is_common else click.Option)(names, **more)


def count(flag: str, least: int, default: int, text: str, *, is_common: bool = False) -> click.Option:
    kind = click.IntRange(min=least)
    return option(flag, type=kind, default=default, metavar="N", help=text, is_common=is_common)


def seconds(
    flag: str,
    name: str,
    default: str | None,
    text: str,
    *words: str,
    least_s: float = 0.0,
    is_common: bool = False,
) -> click.Option:
    """A duration; `words` stand for others."""
    kind, metavar = Duration(*words, least_s=least_s), "|".join((*words[:1], "S", *words[1:]))
    return option(flag, name, type=kind, default=default, metavar=metavar, help=text, is_common=is_common)
