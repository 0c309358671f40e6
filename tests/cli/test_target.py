"""TARGET is found without importing it, and a missing one gets a helpful error."""

from __future__ import annotations

import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from procsv.base.errors import UserError
from procsv.base.system.target import find_target, parse_target

if TYPE_CHECKING:
    from pathlib import Path

BOOM = "raise SystemExit('user code was imported')\n\ndef main(): ...\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make a package whose every __init__ would stop us, a namespace package, a script, a directory
    and a zip that run.
    """
    (tmp_path / "pkg" / "inner").mkdir(parents=True)
    (tmp_path / "pkg" / "__init__.py").write_text(BOOM + "class Trainer: ...\n")
    (tmp_path / "pkg" / "inner" / "__init__.py").write_text(BOOM)
    (tmp_path / "pkg" / "inner" / "train.py").write_text(BOOM)
    (tmp_path / "pkg" / "__main__.py").write_text(BOOM)
    (tmp_path / "space" / "deep").mkdir(parents=True)
    (tmp_path / "space" / "deep" / "train.py").write_text(BOOM)
    (tmp_path / "train.py").write_text(BOOM)
    (tmp_path / "app-dir").mkdir()
    (tmp_path / "app-dir" / "__main__.py").write_text(BOOM)
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", BOOM)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("train", "module", "train"),
        ("train.py", "path", "train"),
        ("./train.py", "path", "train"),
        ("pkg", "module", "pkg"),
        ("pkg.inner.train", "module", "train"),
        ("space.deep.train", "module", "train"),
        ("pkg.inner.train:main", "function", "train.main"),
        ("pkg:Trainer.run", "function", "pkg.Trainer.run"),
        ("app-dir", "path", "app-dir"),
        ("app.zip", "path", "app"),
        ("json.tool", "module", "tool"),
    ],
)
def test_an_existing_target_is_found_without_importing_it(tree: Path, text: str, kind: str, name: str) -> None:
    before = set(sys.modules)
    target = find_target(text, tree)

    assert (kind, name) == (target.kind, target.name)
    assert not {module for module in set(sys.modules) - before if module.startswith(("pkg", "space", "train"))}


def test_a_path_becomes_absolute_and_a_function_gets_its_module(tree: Path) -> None:
    assert str(tree / "train.py") == find_target("train.py", tree).path
    target = find_target("pkg.inner.train:main", tree)
    assert (target.module, target.function, target.path) == ("pkg.inner.train", "main", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trian", ["module trian", "did you mean train?"]),
        ("pkg.iner.train", ["no module iner", "did you mean pkg.inner?"]),
        ("pkg.inner.trian", ["no module trian", "did you mean pkg.inner.train?"]),
        ("nowhere_at_all", ["module nowhere_at_all here", sys.executable]),
        ("trian.py", ["no file", "train.py?"]),
        ("train.py:main", ["write train:main"]),
        ("pkg.inner", ["a __main__", "pkg.inner.train"]),
        ("train.main", ["train is a module"]),
        ("pkg.inner.train:mian", ["mian", "main?"]),
        ("space/", ["a __main__.py"]),
        ("--what ever", ["'--what ever'"]),
        ("", ["TARGET is empty"]),
    ],
)
def test_a_missing_target_is_a_usage_error_that_helps(tree: Path, text: str, said: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        find_target(text, tree, [])

    assert caught.value.exit_code == 2
    for words in said:
        assert words in str(caught.value)


def test_a_missing_module_names_the_searched_places(tree: Path) -> None:
    with pytest.raises(UserError, match=str(tree)):
        find_target("absent", tree, [])


def test_parsing_alone_does_not_require_existence(tmp_path: Path) -> None:
    assert parse_target("not.there", tmp_path).kind == "module"


@pytest.mark.parametrize(
    "source", ["from elsewhere import *", "globals()['ma' + 'in'] = print", "def __getattr__(name): ...", "\xff"]
)
def test_a_function_that_its_module_may_define_at_run_time_is_left_to_the_program(tmp_path: Path, source: str) -> None:
    (tmp_path / "makes.py").write_bytes(source.encode("latin-1"))
    assert find_target("makes:main", tmp_path, []).function == "main"


def test_a_function_of_a_module_in_a_package_is_left_to_the_program(tree: Path) -> None:
    assert find_target("pkg:inner.train.main", tree).function == "inner.train.main"
