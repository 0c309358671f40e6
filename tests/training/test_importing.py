"""The package being imported is known while its import lasts, and no other."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from procsv.training.runtime.trainer_heartbeat import ImportWatch
from tests.support.meanwhile import happens_meanwhile

PACKAGE = """
import looking
looking.look()
import {name}_inner
looking.look()
"""


def test_the_outermost_installed_package_is_named_while_its_import_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, seen = ImportWatch(), list[str]()
    monkeypatch.setitem(sys.modules, "looking", type(sys)("looking"))
    sys.modules["looking"].look = lambda: seen.append(watch.look())  # type: ignore[attr-defined]
    for where, name in ((tmp_path / "site-packages", "slow_one"), (tmp_path / "project", "own_one")):
        for package, text in ((name, PACKAGE.format(name=name)), (f"{name}_inner", "import looking\nlooking.look()\n")):
            (where / package).mkdir(parents=True)
            (where / package / "__init__.py").write_text(text)
            monkeypatch.delitem(sys.modules, package, raising=False)
        monkeypatch.syspath_prepend(where)
    importlib.import_module("slow_one")
    assert seen == ["slow_one"] * 3
    assert watch.look() == ""
    importlib.import_module("own_one")
    assert seen[3:] == [""] * 3
    for name in ("slow_one", "slow_one_inner", "own_one", "own_one_inner"):
        del sys.modules[name]


def test_a_module_that_another_thread_imports_meanwhile_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    origin: Any = Path("/odd")  # no text

    class Odd:
        __spec__ = ModuleSpec("odd", None, origin=origin)

    monkeypatch.setattr(Odd.__spec__, "_initializing", True, raising=False)
    monkeypatch.setitem(sys.modules, "odd", Odd)

    def import_one() -> None:
        monkeypatch.setitem(sys.modules, f"imported_meanwhile_{len(sys.modules)}", type(sys)("imported"))

    with happens_meanwhile(import_one):
        found = ImportWatch().look()
    assert found == ""


def test_an_object_that_a_program_puts_among_the_modules_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("not yet")

    monkeypatch.setitem(sys.modules, "lazy", Lazy())
    assert ImportWatch().look() == ""
