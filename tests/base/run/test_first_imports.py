"""What a program imports first, by its source: as far as nothing can have changed what an import finds, and no further."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from procsv.base.run.first_imports import first_imports
from procsv.base.run.loaded import Loaded
from procsv.base.system.target import parse_target

TF = "import tensorflow as tf\n"
NUMPY_AND_TF = "import os\nimport numpy as np\n" + TF


def of(tmp_path: Path, files: Mapping[str, str] | str, target: str = "train.py") -> Loaded:
    """What is found of a program that lies in `tmp_path`."""
    for name, text in ({"train.py": files} if isinstance(files, str) else files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return first_imports(parse_target(target, tmp_path), tmp_path)


def modules(tmp_path: Path, files: Mapping[str, str] | str, target: str = "train.py") -> tuple[str, ...]:
    return of(tmp_path, files, target).modules


@pytest.mark.parametrize(
    "before",
    [
        "",
        '"""A docstring."""\nfrom __future__ import annotations\n__version__ = "1"\nSIZES = [1, 2]\n',
        "import typing\nif typing.TYPE_CHECKING:\n    import gone\n",
        "def read(path, mode='r'):\n    os.environ['A'] = 'b'\n",
    ],
    ids=["nothing", "constants", "for checkers", "a function"],
)
def test_imports_at_the_top_are_followed_past_what_changes_nothing(tmp_path: Path, before: str) -> None:
    found = modules(tmp_path, before + NUMPY_AND_TF + "print('begins')\nimport sklearn\n")
    assert found[-3:] == ("os", "numpy", "tensorflow")


@pytest.mark.parametrize(
    "statement",
    [
        "print('begins')",
        "sys.path.insert(0, 'lib')",
        "os.environ['A'] = name",
        "os.environ.update(A='b')",
        "import gone",
        "try:\n    import gone\nexcept ImportError:\n    pass",
        "class Model:\n    pass",
        "@decorated\ndef f():\n    pass",
        "def f(x=print()):\n    pass",
        "if True:\n    import os",
        "from . import near",
        "x: int = 1",
        "SIZE = size()",
    ],
)
def test_nothing_is_promised_of_what_comes_after_a_statement_that_may_change_it(tmp_path: Path, statement: str) -> None:
    assert of(tmp_path, f"import os, sys\n{statement}\n{TF}") == Loaded()
    assert modules(tmp_path, f"import os, sys\n{TF}{statement}\nimport numpy\n") == ("os", "sys", "tensorflow")


def test_words_for_the_environment_before_tensorflow_count_and_after_it_end_the_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THERE", "1")
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    first = "import os\nos.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\nos.environ.setdefault('THERE', '2')\n"
    found = of(tmp_path, first + TF + "os.environ['KERAS_BACKEND'] = 'jax'\nimport keras\n")
    assert found.environment == {"TF_CPP_MIN_LOG_LEVEL": "3"}
    assert found.modules == ("os", "tensorflow")


def test_the_programs_own_modules_are_read_and_not_imported(tmp_path: Path) -> None:
    files = {
        "train.py": "import model.net\nfrom helper import shared\nimport json\n",
        "model/__init__.py": "from . import parts\nfrom .parts import deep\n",
        "model/parts/__init__.py": "import numpy\n",
        "model/parts/deep.py": TF,
        "model/net.py": "import colorsys\nif __name__ == '__main__':\n    main()\n",
        "helper.py": "import csv\n",
        "json.py": "import tomllib\n",
        "data/readme.txt": "",
    }
    found = of(tmp_path, files)
    assert found.modules == ("numpy", "tensorflow", "colorsys", "csv", "tomllib")
    assert set(found.own) == {"train", "model", "helper", "json"}


def test_a_statement_that_ends_the_reading_ends_it_in_an_imported_module_too(tmp_path: Path) -> None:
    files = {"train.py": "import numpy\nimport helper\n" + TF, "helper.py": "print('imported')\n"}
    assert of(tmp_path, files) == Loaded()


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("pkg.train", ("csv", "tensorflow")),
        ("pkg", ("csv", "colorsys", "tensorflow")),
        ("pkg.train:main", ("csv", "tensorflow")),
        ("pkg/train.py", ("tensorflow",)),
    ],
)
def test_each_form_of_a_target_begins_with_the_packages_that_python_would_import(
    tmp_path: Path, target: str, found: tuple[str, ...]
) -> None:
    files = {
        "pkg/__init__.py": "import csv\n",
        "pkg/__main__.py": "import colorsys\n" + TF,
        "pkg/train.py": TF + "if __name__ == '__main__':\n    main()\n",
    }
    assert modules(tmp_path, files, target) == found


def test_a_program_without_anything_heavy_needs_no_standby_before_it(tmp_path: Path) -> None:
    assert of(tmp_path, "import os\nimport numpy\n") == Loaded()


@pytest.mark.parametrize("text", ["def (", "\0", "x = " + "(" * 5000])
def test_what_is_no_program_is_left_to_the_interpreter(tmp_path: Path, text: str) -> None:
    assert of(tmp_path, text) == Loaded()


def test_a_module_of_the_programs_that_is_called_like_a_heavy_one_is_its_own(tmp_path: Path) -> None:
    assert of(tmp_path, {"train.py": TF, "tensorflow.py": "import csv\n"}) == Loaded()


def test_a_directory_that_is_not_searched_first_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    assert of(tmp_path, TF) == Loaded()


def test_reading_executes_nothing(tmp_path: Path) -> None:
    before = set(sys.modules)
    assert modules(tmp_path, {"train.py": f"import helper\n{TF}", "helper.py": "import colorsys\n"})
    assert not {"helper", "train"} & (set(sys.modules) - before)
