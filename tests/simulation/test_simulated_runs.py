"""Hundreds of crash schedules: whole simulated runs under random faults, with every invariant
checked after every event.

The seeds are the same every time, so a failure points to the change that came with it;
scripts/simulate tries others.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.simulation.model import faults
from tests.simulation.model.program import draw_program
from tests.simulation.model.run import Run, simulate
from tests.simulation.seeds import seeds

SEEDS = 200
BLOCK = 50


@pytest.mark.parametrize("first", seeds(SEEDS, BLOCK))
def test_row_37_no_schedule_of_random_faults_breaks_an_invariant(first: int) -> None:
    for seed in range(first, first + BLOCK):
        assert simulate(seed).exit_code is not None


def test_row_37_no_attempt_of_a_program_that_never_restores_adopts_an_older_ones_checkpoint() -> None:
    for seed in range(BLOCK):
        program = replace(draw_program(Random(f"never restores {seed}")), restores=False)
        assert Run(seed, program).go().exit_code is not None


def test_row_37_a_seed_replays_event_for_event() -> None:
    for seed in range(5):
        told: list[list[str]] = [[], []]
        for lines in told:
            simulate(seed, trace=lines.append)
        assert told[0] == told[1]
        assert len(told[0]) > 50


def test_every_fault_that_can_be_drawn_is_injected_by_some_seed() -> None:
    thrown: set[faults.Fault] = set()
    for seed in range(SEEDS):
        thrown |= {fault for _, fault in Run(seed).plan}
    assert thrown == set(faults.FAULTS)
