"""The installed package keeps its promises before any of it is used."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import procsv

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_import_procsv_loads_nothing_heavy() -> None:
    heavy = {"tensorflow", "numpy", "zmq", "msgspec", "rich", "click", "psutil", "google", "sklearn"}
    loaded = subprocess.run(
        [sys.executable, "-c", "import procsv, sys; dir(procsv); print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    ).stdout.split()

    assert not heavy & set(loaded)


def test_version_is_the_one_in_pyproject() -> None:
    assert PROJECT["project"]["version"] == procsv.__version__


def names_bound_in(module: Path) -> set[str]:
    """Return the names that an editor offers from the file: its top level's names without an underscore."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom) and node.col_offset <= 4:
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.col_offset == 0:
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.col_offset == 0:
            found |= {
                name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
            }
    return {name for name in found if not name.startswith("_")}


def test_dir_lists_exactly_the_public_names() -> None:
    assert dir(procsv) == sorted([*procsv.__all__, "keras"])


@pytest.mark.parametrize(("name", "more"), [("__init__.py", {"keras"}), ("keras.py", set())])
def test_an_editor_that_reads_the_module_finds_exactly_the_public_names(name: str, more: set[str]) -> None:
    module = ROOT / "procsv" / name
    public = next(
        ast.literal_eval(node.value)
        for node in ast.parse(module.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert names_bound_in(module) == {name for name in public if not name.startswith("_")} | more


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="Supervizor"):
        _ = procsv.Supervizor  # type: ignore[attr-defined]


def test_every_package_in_the_tree_is_listed_for_the_wheel() -> None:
    found = {
        ".".join(("procsv", *parts) if parts[0] != "procsv" else parts)
        for top in ("procsv", "services", "ipc")
        for init in (ROOT / top).rglob("__init__.py")
        if (parts := init.parent.relative_to(ROOT).parts)[:2] not in {("procsv", "services"), ("procsv", "ipc")}
    }

    assert found == set(PROJECT["tool"]["setuptools"]["packages"])
