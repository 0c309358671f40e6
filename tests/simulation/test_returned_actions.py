"""The parts of the core return their actions: they share no list, and none of what they return is lost on its way out."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, get_args

import pytest

from procsv.watchdog import core
from procsv.watchdog.core.actions import Action
from procsv.watchdog.core.run import Core
from procsv.watchdog.core.task.lifecycle import Reaction
from tests.simulation.model.run import simulate

ROOM = Path(str(core.__file__)).parent
MODULES = sorted(ROOM.rglob("*.py"))


def shared_lists(module: Path) -> list[str]:
    """Parameters and fields of `module` that are lists of actions, to which several parts could add."""
    found = []
    for node in ast.walk(ast.parse(module.read_text())):
        fields = node.body if isinstance(node, ast.ClassDef) else []
        named: list[Any] = [field for field in fields if isinstance(field, ast.AnnAssign)]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            named.append(node)
        if isinstance(node, ast.arg):
            named.append(node)
        found += [module.name for one in named if one.annotation and "list[Action]" in of_type(one)]
    return found


def of_type(one: ast.arg | ast.AnnAssign) -> str:
    """Its type; of a function, what it takes: one that returns actions shares nothing."""
    assert one.annotation is not None
    text = ast.unparse(one.annotation).replace("actions.Action", "Action")
    return text.partition("], ")[0] if text.startswith("Callable") else text


def test_no_part_holds_or_takes_a_list_of_actions() -> None:
    assert len(MODULES) > 30
    found = [place for module in MODULES for place in shared_lists(module)]
    assert found == ["lifecycle.py"], "the field of Reaction, which is returned, and no other"


def actions_in(returned: object) -> Iterable[Action]:
    several = returned.wanted if isinstance(returned, Reaction) else returned
    listed = several if isinstance(several, list | tuple) else [several]
    for one in listed:
        if isinstance(one, get_args(Action)):
            yield one
        elif isinstance(one, list):
            yield from actions_in(one)


def watched(answer: Callable[..., list[Action]], counts: list[int]) -> Callable[..., list[Action]]:
    """`answer` of the core, of which nothing may be missing that a function of the core returned meanwhile."""
    files = {str(module) for module in MODULES}

    def answered(*given: Any) -> list[Action]:
        returned: list[Action] = []

        def note(frame: FrameType, event: str, value: object) -> None:
            if event == "return" and frame.f_code.co_filename in files:
                returned.extend(actions_in(value))

        sys.setprofile(note)
        try:
            actions = answer(*given)
        finally:
            sys.setprofile(None)
        out = {id(action) for action in actions}
        lost = [action for action in returned if id(action) not in out]
        assert not lost, f"{lost} after {given[1:]}"
        counts.append(len(actions))
        return actions

    return answered


@pytest.mark.parametrize("has_tasks", [False, True])
def test_every_action_that_a_part_returns_is_among_those_of_the_core(
    has_tasks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    monkeypatch.setattr(Core, "handle", watched(Core.handle, counts))
    monkeypatch.setattr(Core, "start", watched(Core.start, counts))
    for seed in range(1, 4):
        simulate(seed, has_tasks=has_tasks)
    assert sum(counts) > 100
