"""docs/command-line.md describes every command and option of `procsv`, with its default."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from procsv.cli.main import COMMANDS, procsv

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"


def section_of(command: str) -> str:
    match = re.search(rf"^## procsv {command}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert match is not None, f"command-line.md has no section 'procsv {command}'"
    return match[1]


def options_of(command: str) -> list[click.Option]:
    found = procsv.get_command(click.Context(procsv), command)
    assert found is not None
    return [param for param in found.params if isinstance(param, click.Option)]


def rows_of(command: str) -> dict[str, list[str]]:
    """Return the table's rows by option: [option, default, meaning]."""
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in section_of(command).splitlines()
        if line.startswith("| `-")
    ]
    return {name: row for row in rows for name in re.findall(r"(?<=`)--?[a-z-]+", row[0])}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_describes_exactly_the_options_of_each_command(command: str) -> None:
    has = {name for option in options_of(command) for name in (*option.opts, *option.secondary_opts)}
    assert set(rows_of(command)) == has


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_gives_the_default_of_each_option(command: str) -> None:
    rows = rows_of(command)
    for option in options_of(command):
        row = rows[option.opts[-1]]
        assert len(row) == 3, row
        assert row[2], f"{row[0]} has no description"
        if isinstance(option.show_default, str):
            assert row[1].replace("`", "") == option.show_default, row[0]
        elif isinstance(option.default, str | int | float) and not option.is_flag:
            assert row[1].strip("`") == str(option.default), row[0]


def test_the_summary_at_the_top_names_every_command() -> None:
    usage = re.findall(r"^    procsv (\w+)", PAGE.read_text(), re.MULTILINE)
    assert set(usage) == set(COMMANDS)
    assert set(re.findall(r"^## procsv (\w+)", PAGE.read_text(), re.MULTILINE)) == set(COMMANDS)
