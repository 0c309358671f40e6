"""Fixtures for tests of whole runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import own_machines
from tests.support.own_machines import OwnMachine


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[list[OwnMachine]]:
    """Return as many machines as the test asks for, each in its own namespaces."""
    if why := own_machines.why_not():
        pytest.skip(why)
    with own_machines.own_machines(request.param) as made:
        yield made
