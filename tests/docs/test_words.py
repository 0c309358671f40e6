"""Module docstrings open with a noun phrase or an imperative."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUESTION = re.compile(r"(What|How|Which|When|Whether|Who|Whose|Why|Where|Is|Does)\b")
MODULES = sorted(
    file
    for room in ("procsv", "ipc", "services")
    for file in (ROOT / room).rglob("*.py")
    if not any(parent.is_symlink() for parent in file.parents)
)


def title_of(source: str) -> str:
    """The first sentence of a module's docstring, or of its first paragraph, without the command that it documents."""
    text = ast.get_docstring(ast.parse(source)) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    without_command = re.sub(r"^`[^`]*`:? ?|^[\w.]+: ", "", paragraph)
    return re.split(r"(?<=[.?!]) +(?=[A-Z])", without_command)[0]


@pytest.mark.parametrize("module", MODULES, ids=[str(file.relative_to(ROOT)) for file in MODULES])
def test_a_modules_title_is_a_noun_phrase_or_an_imperative(module: Path) -> None:
    title = title_of(module.read_text())
    assert title, "a module says what it is in its docstring"
    assert not QUESTION.match(title[:1].upper() + title[1:]), title
    assert not title.endswith("?"), title


@pytest.mark.parametrize(
    ("docstring", "title"),
    [
        ('"""What is kept of a step.  Pure."""', "What is kept of a step."),
        ('"""`procsv logs DIR`: what a process has\nprinted.\n\nMore."""', "what a process has printed."),
        ('"""Trainer lifecycle: state table\n\nUsed by all."""', "Trainer lifecycle: state table"),
    ],
)
def test_the_title_is_the_first_sentence_behind_the_command(docstring: str, title: str) -> None:
    assert title_of(docstring) == title
