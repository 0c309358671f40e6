"""The list of what a process has imported is complete and does not depend on when it is taken."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from procsv.training.process.imported import Imported, Modules
from tests.training.process.test_fork import said_by

SITE = Path(msgspec.__file__).parents[1]


def module(name: str, file: Path) -> ModuleType:
    made = ModuleType(name)
    made.__file__ = str(file)
    made.__spec__ = ModuleSpec(name, None, origin=str(file))
    made.__spec__.has_location = True
    return made


def some_modules(place: Path) -> Modules:
    """Make installed modules, the program's own, and modules of an installed program."""
    for name in ("train", "helper", "late"):
        (place / f"{name}.py").touch()
    files = {
        "__main__": place / "train.py",
        "json": SITE / "json.py",
        "helper": place / "helper.py",
        "msgspec": SITE / "msgspec" / "__init__.py",
        "msgspec.json": SITE / "msgspec" / "json.py",
        "late": place / "late.py",
    }
    return {name: module(name, file) for name, file in files.items()}


@pytest.mark.parametrize("cut", range(7))
@pytest.mark.parametrize("program", ["train", "msgspec"])
def test_the_list_is_the_same_whether_modules_are_seen_at_once_or_one_by_one(
    tmp_path: Path, cut: int, program: str
) -> None:
    everything = some_modules(tmp_path)
    names = [*everything]
    growing = Modules((name, everything[name]) for name in names[:cut])
    as_they_come, at_once = Imported(growing), Imported(everything)
    as_they_come.note_modules()
    growing.update((name, everything[name]) for name in names[cut:])
    as_they_come.note_modules()
    as_they_come.note_modules()
    at_once.note_modules()
    assert as_they_come.names(program) == at_once.names(program)
    assert as_they_come.own_files(program) == at_once.own_files(program)
    own = {str(tmp_path / f"{name}.py") for name in ("train", "helper", "late")}
    more = {str(SITE / "msgspec" / f"{name}.py") for name in ("__init__", "json")} if program == "msgspec" else set()
    assert set(at_once.own_files(program)) == own | more
    assert set(at_once.names(program)[1]) == {"helper", "late", *({program} if more else ())}


def test_a_module_that_is_gone_is_not_listed_and_later_ones_are(tmp_path: Path) -> None:
    modules = some_modules(tmp_path)
    imported = Imported(modules)
    imported.note_modules()
    del modules["late"]  # the newest
    del modules["json"]
    modules["later"] = module("later", SITE / "later.py")
    imported.note_modules()
    assert imported.names("")[0] == ["msgspec", "msgspec.json", "later"]


class _Growing(Modules):
    """Lets another thread import something at each look."""

    def __reversed__(self) -> Iterator[str]:
        names = super().__reversed__()
        yield next(names)
        self[f"other{len(self)}"] = ModuleType("made by a library")
        yield next(names)


def test_a_thread_that_imports_at_the_same_time_hides_nothing(tmp_path: Path) -> None:
    imported = Imported(_Growing(some_modules(tmp_path)))
    imported.note_modules()
    assert imported.names("")[0] == ["json", "msgspec", "msgspec.json"]


def test_a_fork_examines_only_its_own_imports() -> None:
    lines = said_by("""
import os
from procsv.training.process import imported
from procsv.training.process.fork import settle_memory

imported.installed_directories()  # imports something itself, once
settle_memory()
if os.fork():
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
looks, spec_of = [], imported.spec_of
imported.spec_of = lambda module: looks.append(module.__name__) or spec_of(module)
import colorsys
imported.IMPORTED.note_modules()
names, _ = imported.IMPORTED.names("")
print(looks, "msgspec" in names, "colorsys" in names)
""")
    assert lines == ["['colorsys'] True True"]


def test_a_file_changed_after_it_was_read_counts_as_it_was(tmp_path: Path) -> None:
    imported = Imported(some_modules(tmp_path))
    main, helper = tmp_path / "train.py", tmp_path / "helper.py"
    imported.note_file(str(main))  # it is about to run
    imported.note_modules()
    before = imported.own_files("train")[str(helper)]
    for path in (main, helper):
        path.write_text("edited")
    imported.forget_changed([str(main), str(helper)])  # which also holds for files that are not modules
    files = imported.own_files("train")
    assert files[str(helper)] == before
    assert files[str(main)].size == 0


def test_procsv_tensorflows_generated_code_and_a_second_name_of_main_are_not_the_programs_own(
    tmp_path: Path,
) -> None:
    modules = some_modules(tmp_path)
    for name in ("procsv.base", "procsv.examples.digits", "__autograph_generated_file1", "__mp_main__"):
        (tmp_path / f"{name}.py").touch()
        modules[name] = module(name, tmp_path / f"{name}.py")
    imported = Imported(modules)
    imported.note_modules()
    more = {path.rpartition("/")[2] for path in imported.own_files("train")} - {"train.py", "helper.py", "late.py"}
    assert more == {"procsv.examples.digits.py"}
