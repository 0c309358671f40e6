"""Every row of the fault matrix has its tests, and every declared failpoint is used by one."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import procsv
from procsv.base.system.failpoints import DECLARED
from tests.faults.matrix import ALSO, ROWS_IN_ALL

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "invariants-and-faults.md"
# The matrix's moments of the trainer, parameter server, checkpoint service, summary service and
# watchdog.
MOMENTS = {
    "trainer": "import hello restore compile step capture copy before_publish after_publish save after_last_step atexit",
    "server": "copy",
    "checkpoint": "receive temporary_created mid_write before_fsync before_rename before_directory_fsync before_manifest "
    "before_state before_ack deleting_old serving_restore",
    "summary": "mid_record after_flush_before_ack",
    "watchdog": "before_exec after_exec back_off mid_stop rewriting_status",
}


@functools.cache
def functions_of(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@functools.cache
def named_for_rows() -> dict[int, list[str]]:
    """Return the tests with `row_NN` in their names, by row."""
    named: dict[int, list[str]] = {}
    for file in TESTS.rglob("test_*.py"):
        for function in functions_of(file):
            for number in re.findall(r"row_(\d\d)", function):
                named.setdefault(int(number), []).append(f"{file.relative_to(TESTS)}::{function}")
    return named


def rows_of_the_page() -> list[tuple[int, str]]:
    """Return each row's number with each of its test files."""
    rows = re.findall(r"^\| (\d+) \| .+ \| (`tests/[^|]+`) \|$", PAGE.read_text(), re.MULTILINE)
    return [(int(number), file) for number, files in rows for file in re.findall(r"`tests/([\w/]+\.py)`", files)]


def numbers_of_the_page() -> list[int]:
    return list(dict.fromkeys(number for number, _ in rows_of_the_page()))


@pytest.mark.parametrize("row", numbers_of_the_page())
def test_each_row_of_the_fault_matrix_has_a_test(row: int) -> None:
    assert named_for_rows().get(row) or ALSO.get(row)


def test_each_row_of_the_page_names_a_file_with_a_test_of_that_row() -> None:
    assert numbers_of_the_page() == list(range(1, ROWS_IN_ALL + 1))
    for number, file in rows_of_the_page():
        tests = (*named_for_rows().get(number, ()), *ALSO.get(number, ()))
        assert any(test.startswith(f"{file}::") for test in tests), f"row {number}: {file} has no test of it"


def test_every_test_in_the_index_exists() -> None:
    assert set(ALSO) <= set(range(1, ROWS_IN_ALL + 1))
    for name in (name for names in ALSO.values() for name in names):
        file, _, function = name.partition("::")
        assert (TESTS / file).is_file(), name
        assert function in functions_of(TESTS / file), name


def declared() -> set[str]:
    """Return all failpoints, after importing every module that has one."""
    for module in pkgutil.walk_packages(procsv.__path__, "procsv."):
        source = importlib.util.find_spec(module.name)
        if source is not None and source.origin and "declare(" in Path(source.origin).read_text():
            importlib.import_module(module.name)
    return DECLARED


def test_every_moment_of_the_matrix_is_a_failpoint() -> None:
    names = declared()
    wanted = {f"{process}.{moment}" for process, moments in MOMENTS.items() for moment in moments.split()}
    assert wanted - names == set()


def test_every_declared_failpoint_is_used_by_a_test() -> None:
    texts = [
        file.read_text() for file in TESTS.rglob("*.py") if file.name not in ("test_matrix.py", "test_failpoints.py")
    ]

    def is_used(name: str) -> bool:
        """Return whether a test uses it, by its name or with all of its process's."""
        all_of_it = f'in DECLARED if name.startswith("{name.partition(".")[0]}.")'
        return any(all_of_it in text or re.search(rf"\b{re.escape(name)}\b", text) for text in texts)

    assert {name for name in declared() if not is_used(name)} == set()
