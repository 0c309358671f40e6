"""Keras draws the same seeds for unseeded layers in each attempt of a run, unless the program seeds
`random` itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from procsv.training.keras.private import RunSeeds


@pytest.fixture(autouse=True)
def _random() -> Iterator[None]:
    before = random.getstate()
    random.seed()
    yield
    random.setstate(before)


def attempt(name: str = "run trainer") -> RunSeeds:
    random.seed()  # as a new process has it
    seeds, first = RunSeeds(), random.getstate()
    seeds.find_attempt = lambda: (name, first)
    return seeds


def draw(seeds: Any) -> list[int]:
    return [seeds.randint(1, 10**9) for _ in range(5)]


def test_attempts_of_a_run_draw_the_same_seeds_and_other_runs_draw_others() -> None:
    assert draw(attempt()) == draw(attempt())
    assert draw(attempt()) != draw(attempt("another run"))


def test_a_program_that_draws_from_unseeded_random_gets_the_same_seeds() -> None:
    wanted, seeds = draw(attempt()), attempt()
    random.random()
    assert draw(seeds) == wanted


@pytest.mark.parametrize("when", ["before the first layer", "after it"])
def test_a_program_that_seeds_random_gets_what_keras_gives(when: str) -> None:
    random.seed(3)
    wanted = draw(random)
    seeds = attempt()
    if when == "after it":
        draw(seeds)
    random.seed(3)
    assert draw(seeds) == wanted


def test_a_program_that_skips_passes_of_a_loop_draws_what_the_others_draw_without_it() -> None:
    def build(seeds: Any) -> list[int]:
        return draw(seeds) + draw(seeds)

    def members(first: int) -> dict[int, list[int]]:
        seeds, found = attempt(), dict[int, list[int]]()
        for number, _ in list(enumerate("abc"))[first:]:
            found[number] = build(seeds)
        return found

    every = members(0)
    assert members(1) == {number: every[number] for number in (1, 2)}
    assert len({seed for seeds in every.values() for seed in seeds}) == 3 * 2 * 5


def test_outside_of_a_run_keras_draws_from_random() -> None:
    random.seed(3)
    wanted = draw(random)
    random.seed(3)
    assert draw(RunSeeds()) == wanted


def test_a_restored_attempt_draws_what_an_undisturbed_one_draws() -> None:
    seeds = attempt()
    draw(seeds)
    state, of_random = seeds.read_seeds(), random.getstate()
    wanted = draw(seeds)
    other = attempt()
    draw(other)
    random.setstate(of_random)
    other.write_seeds(state)
    assert draw(other) == wanted
