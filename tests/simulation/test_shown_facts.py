"""Every invariant sees all the kinds of facts that its code names: it could not notice a missing one."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import pytest

from tests.simulation.model import invariants
from tests.simulation.model.group.fewer import GivenUp
from tests.simulation.model.machines import invariants as of_machines
from tests.simulation.model.machines.invariants import KINDS

LOOKS_AT: dict[Callable[..., Any], tuple[type, ...]] = {
    **invariants.INVARIANTS,
    **of_machines.INVARIANTS,
    **of_machines.OF_FEWER,
    **of_machines.OF_COPIES,
    GivenUp.check: GivenUp.LOOKS_AT,
}


def kinds_named(function: Any) -> set[str]:
    """Return the kinds of facts named in its code, or in a function of its module that it passes one to."""
    code: CodeType = function.__code__
    found = {kind.__name__ for kind in KINDS if kind.__name__ in code.co_names}
    helpers = [function.__globals__.get(name) for name in code.co_names]
    for helper in helpers:
        if isinstance(helper, FunctionType) and helper.__module__ == function.__module__:
            found |= kinds_named(helper)
    return found


@pytest.mark.parametrize("invariant", LOOKS_AT, ids=lambda invariant: f"{invariant.__module__}.{invariant.__name__}")
def test_an_invariant_is_shown_every_kind_of_fact_that_it_names(invariant: Callable[..., Any]) -> None:
    named, shown = kinds_named(invariant), {kind.__name__ for kind in LOOKS_AT[invariant]}
    assert named, "what it looks at cannot be read from its code"
    assert named <= shown


def test_every_invariant_is_shown_something() -> None:
    of_one = {invariant for shown in invariants.SHOWN.values() for invariant in shown}
    assert of_one == set(invariants.INVARIANTS)
    of_several = {invariant for shown in of_machines.SHOWN.values() for invariant in shown}
    assert of_several == set(of_machines.INVARIANTS)
