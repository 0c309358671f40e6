"""Each of procsv's patches to TensorFlow's objects can be applied and undone."""

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.summary.writer.writer_cache import FileWriterCache

import procsv
from procsv.training.graph import session as training_session
from procsv.training.graph.patches import (
    AttributePatch,
    ItemPatch,
    Patch,
    growing_graph,
    hiding_ops,
    move_paths,
)
from procsv.training.process.drop_in import class_patches

tf1 = tf.compat.v1

Case = tuple[Patch, Callable[[], object]]  # a patch and what it changes


@pytest.fixture
def graph() -> Iterator[Any]:
    with tf.Graph().as_default() as graph:
        tf1.get_variable("seen", [])
        yield graph


def _counted_runs(graph: Any) -> Case:
    home = next(kind for kind in tf1.Session.__mro__ if "run" in vars(kind))
    return AttributePatch(home, "run", training_session.counted), lambda: tf1.Session.run


def _coordinated_save(graph: Any) -> Case:
    saver = tf1.train.Saver()
    return AttributePatch(saver, "save", lambda save: lambda *args: save(*args)), lambda: dict(vars(saver))


def _creators_manager(graph: Any) -> Case:
    creator = tf1.train.ChiefSessionCreator()
    return AttributePatch(creator, "_session_manager", lambda _: object()), lambda: dict(vars(creator))


def _event_writer(graph: Any) -> Case:
    return ItemPatch(FileWriterCache._cache, "anywhere", object()), lambda: dict(FileWriterCache._cache)


CASES = [_counted_runs, _coordinated_save, _creators_manager, _event_writer]


@pytest.mark.parametrize("case", CASES)
def test_a_patch_changes_tensorflow_until_it_is_undone(case: Callable[[Any], Case], graph: Any) -> None:
    patch, state = case(graph)
    before = state()
    with patch:
        assert state() != before
        patch.apply()  # once is enough
    assert state() == before
    patch.undo()
    assert state() == before


def _names_of_tensorflow() -> dict[tuple[str, str], int]:
    """Return what each name of each module refers to, including the program's modules."""
    own = ("procsv", "services", "ipc")
    modules = {name: module for name, module in sys.modules.items() if name.split(".")[0] not in own}
    return {
        (name, key): id(value)
        for name, module in modules.items()
        if isinstance(module, ModuleType)
        for key, value in list(vars(module).items())
        if isinstance(value, type)
    }


def test_the_classes_of_drop_in_are_tensorflows_again_after_the_undo() -> None:
    patches = class_patches()
    for patch in (*patches, *reversed(patches)):  # load lazy names before counting
        patch.apply() if not patch.is_applied else patch.undo()
    before = _names_of_tensorflow()
    for patch in patches:
        patch.apply()
    assert tf1.train.Supervisor is procsv.Supervisor
    for patch in reversed(patches):
        patch.undo()
    assert tf1.train.Supervisor is not procsv.Supervisor
    assert _names_of_tensorflow() == before


@pytest.mark.parametrize("before", [{}, {"key": "old"}])
def test_an_item_that_other_code_has_replaced_stays(before: dict[str, str]) -> None:
    mapping: dict[str, str] = dict(before)
    with ItemPatch(mapping, "key", "ours"):
        mapping["key"] = "theirs"
    assert mapping == {"key": "theirs"}


def test_a_patch_under_another_librarys_wrapper_stays_and_is_not_applied_again() -> None:
    thing = SimpleNamespace(run=lambda: "run")

    def counted(run: Callable[[], str]) -> Callable[[], str]:
        return lambda: f"counted {run()}"

    patch = AttributePatch(thing, "run", counted)
    patch.apply()
    ours = thing.run
    thing.run = lambda: f"theirs {ours()}"
    patch.undo()
    patch.apply()
    assert thing.run() == "theirs counted run"


def test_a_finalized_graph_can_be_extended_for_a_while(graph: Any) -> None:
    graph.finalize()
    with growing_graph(graph):
        tf1.constant(1, name="added")
    assert graph.finalized
    assert graph.get_operation_by_name("added").name == "added"


def test_ops_hidden_at_different_times_are_all_hidden(graph: Any) -> None:
    for name in ("first", "second"):
        with hiding_ops(graph):
            tf1.constant(1, name=name)
    assert {"first", "second"}.isdisjoint(op.name for op in graph.get_operations())
    assert {"first", "second"}.isdisjoint(node.name for node in graph.as_graph_def().node)
    assert graph.get_operation_by_name("second").name == "second"


# Attributes of procsv's own classes, which extend TensorFlow's; a hook is as it was before it
# began.
PATCHES = ("patches.py", "private.py", "epochs.py")
ASSIGNED_ELSEWHERE = {
    "__class__",  # of our own logger
    "__loader__",  # set by an import
    "_controller",
    "_procsv_at_close",
    "_procsv_boundary",
    "_procsv_pending",
    "_should_stop",
    "_summary_writer",
}


def test_only_the_patches_assign_private_attributes_of_other_libraries() -> None:
    training = Path(procsv.__file__).parent / "training"
    found = set()
    for file in training.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else []
            for target in targets:
                if isinstance(target, ast.Attribute) and target.attr.startswith("_"):
                    is_own = isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")
                    found |= {target.attr} if not is_own and file.name not in PATCHES else set()
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("setattr", "delattr")
            ):
                is_alias = file.name == "supervisor.py"  # procsv.Supervisor's own names
                found |= {node.func.id} if file.name not in PATCHES and not is_alias else set()
    assert found <= ASSIGNED_ELSEWHERE


def test_paths_in_a_moved_directory_move_with_it_and_others_stay(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    hook = SimpleNamespace(_dir=str(old), _path=f"{old}/model.ckpt", _other=str(tmp_path / "older"), _none=None)
    move_paths([hook], ("_dir", "_path", "_other", "_none", "_missing"), str(old), str(new))
    assert vars(hook) == {
        "_dir": str(new), "_path": f"{new}/model.ckpt", "_other": str(tmp_path / "older"), "_none": None
    }  # fmt: skip
