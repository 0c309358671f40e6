"""What the installed package promises before any of it is used."""

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


def test_dir_lists_the_public_names() -> None:
    assert set(procsv.__all__) <= set(dir(procsv))


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="Supervizor"):
        _ = procsv.Supervizor


def test_every_package_in_the_tree_is_listed_for_the_wheel() -> None:
    found = {
        ".".join(("procsv", *parts) if parts[0] != "procsv" else parts)
        for top in ("procsv", "services", "ipc")
        for init in (ROOT / top).rglob("__init__.py")
        if (parts := init.parent.relative_to(ROOT).parts)[:2] not in {("procsv", "services"), ("procsv", "ipc")}
    }

    assert found == set(PROJECT["tool"]["setuptools"]["packages"])
