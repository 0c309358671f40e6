"""Collect the sentences in procsv's source, and the tests that quote one."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def name_of(value: ast.expr) -> str:
    """Return the name that stands for a value in an f-string: its last one."""
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(args=[first, *_]):
            return name_of(first)
        case ast.Call(func=called):
            return name_of(called)
    return "…"


def text_of(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(
                f"{{{name_of(part.value)}}}" if isinstance(part, ast.FormattedValue) else text_of(part) or ""
                for part in parts
            )
    return None


def strings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield every string in `node` that people may read, with its line. Docstrings and assert
    messages are not among them.

    An f-string counts as one string, with its values named in braces.
    """
    if (text := text_of(node)) is not None:
        yield node.lineno, text  # type: ignore[attr-defined]
    for child in ast.iter_child_nodes(node):
        inner = child.value if isinstance(node, ast.JoinedStr) and isinstance(child, ast.FormattedValue) else child
        is_part = isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant)
        is_docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        is_reason = isinstance(node, ast.Assert) and child is node.msg
        if not (is_part or is_docstring or is_reason):
            yield from strings(inner)


def runs_of_words(text: str) -> Iterator[list[str]]:
    """Yield the words of `text` in runs. A value, number, option, path or quotation ends a run."""
    run: list[str] = []
    for token in re.sub(r"(?<!\w)'[^']*'|`[^`]*`|\"[^\"]*\"", " … ", re.sub(r"\\[sdbw.]?", " ", text)).split():
        word = token.strip(".,;:!?()'\"`…")
        if not re.fullmatch(r"[A-Z]?[a-z]+('[a-z]+)?|A", word):  # SIGKILL and TF_CONFIG count as values
            yield run
            run = []
            continue
        run.append(word.lower())
    yield run


def quotes(text: str) -> Iterator[tuple[str, ...]]:
    """Yield what counts as wording in `text`: four words in a row, or five with values between them."""
    runs = list(runs_of_words(text))
    for words, size in [*((run, 4) for run in runs), (list(itertools.chain(*runs)), 5)]:
        yield from (tuple(words[at : at + size]) for at in range(len(words) - size + 1))


def said_in(room: str) -> list[str]:
    """Return the lines of three or more words in a room's source, without patterns.

    wording.py is left out because the tests build its sentences.
    """
    folder = ROOT / room if room in {"ipc", "services"} else ROOT / "procsv" / room
    lines = {
        line.strip()
        for path in folder.rglob("*.py")
        if path.name != "wording.py"
        for _, text in strings(ast.parse(path.read_text()))
        for line in text.splitlines()
        if "\\" not in line and not line.startswith("^") and sum(map(len, runs_of_words(line))) >= 3
    }
    return sorted(lines)


def quoted(path: Path, ours: set[tuple[str, ...]]) -> dict[str, str]:
    """Return where a test file quotes wording in `ours`, and the text.

    Strings of several lines are programs or tracebacks, so they count only where the test asserts
    or compares them.
    """
    tree = ast.parse(path.read_text())
    found = [one for one in strings(tree) if "\n" not in one[1].strip()]
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert | ast.Compare):
            found += strings(node)
    return {f"{path.relative_to(ROOT)}:{line}": text for line, text in found if not ours.isdisjoint(quotes(text))}
