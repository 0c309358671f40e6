"""A real Slurm for each test, of four nodes unless it asks for another number."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.slurm import SlurmCluster, missing_for_slurm


@pytest.fixture
def slurm(request: pytest.FixtureRequest) -> Iterator[SlurmCluster]:
    """`@pytest.mark.parametrize("slurm", [12], indirect=True)` for twelve nodes; a dictionary has arguments of SlurmCluster."""
    if why := missing_for_slurm():
        pytest.skip(why)
    param = getattr(request, "param", 4)
    cluster = SlurmCluster(**param) if isinstance(param, dict) else SlurmCluster(param)
    try:
        try:
            cluster.start()
        except (AssertionError, TimeoutError) as why:  # a container may not let its daemons do what they have to
            pytest.skip(f"Slurm is installed, and does not start on this machine: {why}")
        yield cluster
    finally:
        cluster.stop()
