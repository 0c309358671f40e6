"""docs/examples.md: what each program of procsv/examples shows and how it is run, from the head of its file."""

from __future__ import annotations

import ast
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "procsv" / "examples"
ORDER = ("digits", "custom_loop", "keras_digits", "replicas", "keras_replicas")
HELPERS = {"__init__", "progress"}
HEAD = """# Examples

Made by `scripts/docs` from the files in `procsv/examples`. These programs come with the
package: `pip install 'procsv[examples]'`, start one, and kill it.

"""


def examples_page() -> str:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*ORDER, *HELPERS}
    return HEAD + "\n".join(section(name) for name in ORDER)


def section(name: str) -> str:
    text = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text())) or ""
    title, _, rest = text.partition("\n\n")
    _, _, does = title.partition(": ")
    return f"## {name}\n\n{does[0].upper()}{does[1:]}\n\n{rest}\n\nSource: [{name}.py](../procsv/examples/{name}.py)\n"
