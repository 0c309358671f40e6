"""The trainer's lifecycle table: every path ends, and any unlisted pair raises with the story."""

from __future__ import annotations

import itertools
import random

import pytest

from procsv.watchdog.core.task.lifecycle import (
    LIVE,
    TERMINAL,
    TRANSITIONS,
    IllegalTransition,
    Lifecycle,
    LifecycleAction,
    LifecycleEvent,
    TaskState,
)

E, A = LifecycleEvent, LifecycleAction
UNLISTED = [pair for pair in itertools.product(TaskState, LifecycleEvent) if pair not in TRANSITIONS]


def after(*events: LifecycleEvent) -> tuple[TaskState, tuple[LifecycleAction, ...]]:
    """Return a fresh trainer's state after `events`, and the result of the last one."""
    life = Lifecycle()
    actions: tuple[LifecycleAction, ...] = ()
    for event in events:
        actions = life.handle(event)
    return life.state, actions


@pytest.mark.parametrize(
    ("events", "state", "actions"),
    [
        ((E.HELLO, E.RESTORES, E.READY, E.FINISHED), TaskState.DONE, (A.CLEAN_UP, A.END_RUN)),
        ((E.HELLO, E.READY, E.CRASHED), TaskState.BACKOFF, (A.CLEAN_UP, A.DECIDE_RESTART)),
        ((E.READY, E.CRASHED, E.DELAY_OVER), TaskState.PENDING, (A.SPAWN,)),
        ((E.READY, E.CRASHED, E.GAVE_UP), TaskState.FAILED, (A.END_RUN,)),
        ((E.NOT_STARTED,), TaskState.BACKOFF, (A.DECIDE_RESTART,)),
        ((E.READY, E.STOP_ASKED), TaskState.STOPPING, (A.TELL_STOP,)),
        ((E.STOP_ASKED, E.HELLO), TaskState.STOPPING, (A.TELL_STOP,)),  # asked before it could hear
        ((E.READY, E.STOP_ASKED, E.CHECKPOINTED), TaskState.STOPPED, (A.CLEAN_UP, A.END_RUN)),
        ((E.READY, E.STOP_ASKED, E.KILL_ASKED), TaskState.STOPPING, (A.KILL_TREE,)),
        ((E.READY, E.RECYCLE_ASKED, E.CHECKPOINTED), TaskState.BACKOFF, (A.CLEAN_UP, A.DECIDE_RESTART)),
        ((E.READY, E.RECYCLE_ASKED, E.RECYCLE_LATE), TaskState.RECYCLING, (A.KILL_TREE,)),
        ((E.READY, E.HANGS), TaskState.HUNG, (A.DUMP_STACKS,)),
        ((E.READY, E.HANGS, E.STEPS), TaskState.HUNG, ()),  # too late: its stacks are being taken
        ((E.READY, E.HANGS, E.STOP_ASKED), TaskState.STOPPING, (A.KILL_TREE,)),  # it would not receive it
        ((E.READY, E.HANGS, E.TREE_STAYS), TaskState.UNKILLABLE, (A.ALERT,)),
        ((E.READY, E.HANGS, E.TREE_STAYS, E.TREE_GONE), TaskState.BACKOFF, ()),
        ((E.READY, E.STALLS), TaskState.STALLED, (A.REPORT_HANG,)),  # only observed: it is left alone
        ((E.READY, E.STALLS, E.MOVES), TaskState.RUNNING, (A.REPORT_PROGRESS,)),
    ],
)
def test_a_trainers_life_follows_the_table(
    events: tuple[LifecycleEvent, ...], state: TaskState, actions: tuple[LifecycleAction, ...]
) -> None:
    assert after(*events) == (state, actions)


@pytest.mark.parametrize("state", TaskState)
def test_a_kill_leads_from_every_state_to_an_end(state: TaskState) -> None:
    life = Lifecycle()
    life.state = state
    actions = life.handle(E.KILL_ASKED)
    if life.state is TaskState.STOPPING:
        assert A.KILL_TREE in actions
        actions = life.handle(E.CRASHED)

    assert life.state in (*TERMINAL, TaskState.UNKILLABLE)
    assert state in TERMINAL or A.END_RUN in actions


def test_the_end_of_the_run_leads_every_row_into_a_terminal_state_and_the_rows_within_none() -> None:
    into = [edge for (state, _), edge in TRANSITIONS.items() if edge.to in TERMINAL and state not in TERMINAL]
    within = [edge for (state, _), edge in TRANSITIONS.items() if state in TERMINAL]

    assert all(A.END_RUN in edge.do for edge in into)
    assert not any(A.END_RUN in edge.do or A.SPAWN in edge.do for edge in within)


@pytest.mark.parametrize(("state", "event"), UNLISTED)
def test_every_unlisted_pair_raises_and_changes_nothing(state: TaskState, event: LifecycleEvent) -> None:
    life = Lifecycle()
    life.state = state

    with pytest.raises(IllegalTransition, match=f"{event.name} in {state.name}; story: PENDING"):
        life.handle(event)
    assert life.state is state


def test_a_start_passes_through_its_phases() -> None:
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

    assert life.state is TaskState.RUNNING
    assert life.story[:3] == ("PENDING", "IMPORTS > IMPORTING", "HELLO > CONNECTED")


def test_a_missing_rows_error_tells_how_it_got_there() -> None:
    life = Lifecycle()
    life.handle(LifecycleEvent.HELLO)
    life.handle(LifecycleEvent.CRASHED, "SIGSEGV at step 840")

    with pytest.raises(IllegalTransition, match=r"READY in BACKOFF; story: .*CRASHED\(SIGSEGV at step 840\) > BACKOFF"):
        life.handle(LifecycleEvent.READY)


def test_the_story_has_a_bounded_length() -> None:
    life = Lifecycle()
    for _ in range(1000):
        for event in (LifecycleEvent.RESTORES, LifecycleEvent.CRASHED, LifecycleEvent.DELAY_OVER):
            life.handle(event)

    assert len(life.story) == 40
    assert life.story[-1] == "DELAY_OVER > PENDING"


def test_a_state_is_shown_by_its_name_and_a_stall_as_a_stall() -> None:
    assert {state.word for state in TaskState if state.word != state.name.lower()} == {"hung"}
    assert (TaskState.STALLED.word, TaskState.HUNG.word) == ("hung", "hung")


def test_spawning_happens_only_from_backoff() -> None:
    assert {state for (state, _), edge in TRANSITIONS.items() if LifecycleAction.SPAWN in edge.do} == {
        TaskState.BACKOFF
    }


def test_terminal_states_have_no_exit_except_for_a_finished_worker_whose_gang_breaks() -> None:
    ways_out = {(state, event) for (state, event), edge in TRANSITIONS.items() if edge.to is not state}

    assert {pair for pair in ways_out if pair[0] in TERMINAL} == {(TaskState.DONE, LifecycleEvent.GANG_BREAKS)}
    assert set(TERMINAL) <= set(TaskState)
    assert set(TaskState) - {state for state, _ in ways_out} == set(TERMINAL) - {TaskState.DONE}


@pytest.mark.parametrize("state", LIVE)
def test_every_death_of_a_living_trainer_is_cleaned_up(state: TaskState) -> None:
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
                LifecycleEvent.NOT_STARTED,
                LifecycleEvent.AWAITS_STANDBY,
            )
            and was is not TaskState.UNKILLABLE
        ):
            alive -= 1
        alive += LifecycleAction.SPAWN in actions
        assert alive in (0, 1), f"seed={seed}: {life.story}"
        if life.state in (*TERMINAL, TaskState.UNKILLABLE):
            break
