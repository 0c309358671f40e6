"""The trainer's table: every listed pair does what it says, every other raises with the story."""

from __future__ import annotations

import itertools
import random

import pytest

from procsv.watchdog.core.lifecycle import (
    LIVE,
    TERMINAL,
    TRANSITIONS,
    IllegalTransition,
    Lifecycle,
    LifecycleAction,
    LifecycleEvent,
    State,
)

UNLISTED = [pair for pair in itertools.product(State, LifecycleEvent) if pair not in TRANSITIONS]


@pytest.mark.parametrize(("state", "event"), list(TRANSITIONS))
def test_every_listed_pair_leads_where_it_says(state: State, event: LifecycleEvent) -> None:
    life = Lifecycle()
    life.state = state

    assert life.handle(event) == TRANSITIONS[state, event].do
    assert life.state is TRANSITIONS[state, event].to


@pytest.mark.parametrize(("state", "event"), UNLISTED)
def test_every_unlisted_pair_raises_and_changes_nothing(state: State, event: LifecycleEvent) -> None:
    life = Lifecycle()
    life.state = state

    with pytest.raises(IllegalTransition, match=f"{event.name} in {state.name}; story: PENDING"):
        life.handle(event)
    assert life.state is state


def test_a_start_goes_through_its_phases() -> None:
    life = Lifecycle()
    for event in (
        LifecycleEvent.IMPORTS,
        LifecycleEvent.HELLO,
        LifecycleEvent.RESTORES,
        LifecycleEvent.COMPILES,
        LifecycleEvent.READY,
        LifecycleEvent.STEPS,
    ):
        life.handle(event)

    assert life.state is State.RUNNING
    assert life.story[:3] == ("PENDING", "IMPORTS > IMPORTING", "HELLO > CONNECTED")


def test_the_error_of_a_missing_row_tells_how_it_came_there() -> None:
    life = Lifecycle()
    life.handle(LifecycleEvent.HELLO)
    life.handle(LifecycleEvent.CRASHED, "SIGSEGV at step 840")

    with pytest.raises(IllegalTransition, match=r"READY in BACKOFF; story: .*CRASHED\(SIGSEGV at step 840\) > BACKOFF"):
        life.handle(LifecycleEvent.READY)


def test_the_story_does_not_grow_without_end() -> None:
    life = Lifecycle()
    for _ in range(1000):
        for event in (LifecycleEvent.RESTORES, LifecycleEvent.CRASHED, LifecycleEvent.DELAY_OVER):
            life.handle(event)

    assert len(life.story) <= 40


def test_nothing_is_spawned_but_from_backoff() -> None:
    assert {state for (state, _), edge in TRANSITIONS.items() if LifecycleAction.SPAWN in edge.do} == {State.BACKOFF}


def test_terminal_states_have_no_way_out() -> None:
    ways_out = {state for (state, _), edge in TRANSITIONS.items() if edge.to is not state}

    assert set(State) - ways_out == set(TERMINAL)


@pytest.mark.parametrize("state", LIVE)
def test_every_death_of_a_live_trainer_is_buried(state: State) -> None:
    for event in (LifecycleEvent.FINISHED, LifecycleEvent.CHECKPOINTED, LifecycleEvent.CRASHED):
        assert LifecycleAction.CLEAN_UP in TRANSITIONS[state, event].do


@pytest.mark.parametrize("seed", range(200))
def test_a_random_walk_never_has_two_trainers(seed: int) -> None:
    rng, life, alive = random.Random(seed), Lifecycle(), 1
    for _ in range(60):
        event = rng.choice([event for (state, event) in TRANSITIONS if state is life.state])
        was = life.state
        actions = life.handle(event)
        if (
            event
            in (
                LifecycleEvent.FINISHED,
                LifecycleEvent.CHECKPOINTED,
                LifecycleEvent.CRASHED,
                LifecycleEvent.NOT_SPAWNED,
            )
            and was is not State.UNKILLABLE
        ):
            alive -= 1
        alive += LifecycleAction.SPAWN in actions
        assert alive in (0, 1), f"seed={seed}: {life.story}"
        if life.is_over or life.state is State.UNKILLABLE:
            break
