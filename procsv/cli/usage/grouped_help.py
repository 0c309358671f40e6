"""Show the help of a command with many options: examples first, then options in groups.

Used by launch.py. Rare options appear only with --help-all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from procsv.cli.values import Duration

_ALL = "procsv.help_all"  # key in the meta of click's context: set if --help-all was given
_HELPS = {"help", "help-all"}


class CommonOption(click.Option):
    """An option that --help shows. Other options appear only with --help-all."""


class OptionGroup:
    def __init__(self, title: str, *options: click.Option) -> None:
        self.title, self.options = title, options


class GroupedCommand(click.Command):
    """A command whose help shows its options in `groups`.

    Options that belong to no group, such as --help, appear in the first group.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401  click's own
        groups: Sequence[OptionGroup],
        examples: str,
        **more: Any,  # noqa: ANN401
    ) -> None:
        declared = [option for group in groups for option in group.options]
        super().__init__(*args, **more)
        self.params[:0] = declared
        self.groups = {group.title: tuple(map(name_of, group.options)) for group in groups}
        self.common = frozenset(name_of(one) for one in declared if isinstance(one, CommonOption)) | _HELPS
        self.examples = examples
        self.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                help="Show this help with all options and exit.",
            )
        )

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        with formatter.section("Examples"):
            formatter.write("".join(f"  {line.strip()}\n" for line in self.examples.strip().splitlines()))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        is_all = bool(ctx.meta.get(_ALL))
        left = {name_of(param): param for param in self.get_params(ctx) if isinstance(param, click.Option)}
        sections = {title: [left.pop(name) for name in names if name in left] for title, names in self.groups.items()}
        sections[next(iter(sections))] += sorted(left.values(), key=name_of)
        for title, options in sections.items():
            shown = [option for option in options if is_all or name_of(option) in self.common]
            records = [record for option in shown if (record := option.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def name_of(option: click.Option) -> str:
    """Return the option's name as typed, without its dashes."""
    return option.opts[-1].lstrip("-")


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


__all__ = ["OptionGroup", "count", "option", "seconds"]


def option(*names: str, is_common: bool = False, **more: Any) -> click.Option:  # noqa: ANN401  click's own
    """Declare an option. `is_common`: --help shows it; otherwise only --help-all does."""
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
    """Declare an option whose value is a duration or one of `words`."""
    kind, metavar = Duration(*words, least_s=least_s), "|".join((*words[:1], "S", *words[1:]))
    return option(flag, name, type=kind, default=default, metavar=metavar, help=text, is_common=is_common)
