"""A real Slurm for each test, with four nodes unless the test asks for another number."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.slurm import SlurmCluster, missing_for_slurm


@pytest.fixture
def slurm(request: pytest.FixtureRequest) -> Iterator[SlurmCluster]:
    """Use `@pytest.mark.parametrize("slurm", [12], indirect=True)` for twelve nodes, or a dict of
    SlurmCluster's arguments.
    """
    if why := missing_for_slurm():
        pytest.skip(why)
    param = getattr(request, "param", 4)
    cluster = SlurmCluster(**param) if isinstance(param, dict) else SlurmCluster(param)
    try:
        try:
            cluster.start()
        except (AssertionError, TimeoutError) as why:  # a container may forbid what its daemons need
            pytest.skip(f"Slurm is installed, and does not start on this machine: {why}")
        yield cluster
    finally:
        cluster.stop()
