"""The step boundary is the one way past a step, whatever a step is."""

import threading

import pytest

from procsv.training.snapshots.boundary import Boundary


def test_a_call_ends_at_the_boundary_only_when_something_is_due() -> None:
    visits: list[int] = []
    boundary = Boundary(lambda: visits.append(boundary.runs))
    assert boundary.pass_call(lambda value: value, (1,)) == 1
    boundary.due = True
    assert boundary.pass_call(lambda value: value, (2,)) == 2
    assert (boundary.runs, visits) == (2, [2])


def test_a_call_within_a_call_is_part_of_it() -> None:
    visits: list[int] = []
    boundary = Boundary(lambda: visits.append(boundary.pass_call(lambda: 7)))
    boundary.due = True
    assert boundary.is_ahead

    def outer() -> int:
        assert not boundary.is_ahead
        return int(boundary.pass_call(lambda: 5, about="inner"))

    assert boundary.pass_call(outer, about="outer") == 5
    assert (boundary.runs, boundary.about, visits) == (1, "outer", [7])


def test_a_failing_call_is_not_a_step_and_leaves_the_way_free() -> None:
    visits: list[None] = []
    boundary = Boundary(lambda: visits.append(None))
    boundary.due = True
    with pytest.raises(ZeroDivisionError):
        boundary.pass_call(lambda: 1 // 0)
    assert (boundary.runs, visits) == (0, [])
    boundary.pass_call(lambda: None)
    assert (boundary.runs, visits) == (1, [None])


def test_calls_of_other_threads_pass_while_the_training_thread_is_paused() -> None:
    boundary = Boundary(lambda: None)
    said: list[object] = []

    def elsewhere() -> None:
        said.append(boundary.is_ahead)
        said.append(boundary.pass_call(lambda: "done", about="theirs"))

    with boundary.hold_thread():
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
    assert said == [False, "done"]
    assert (boundary.runs, boundary.elsewhere, boundary.about) == (0, 1, None)


def test_the_training_thread_waits_for_a_thread_that_pauses_it_and_not_for_itself() -> None:
    boundary = Boundary(lambda: None)
    order: list[str] = []
    held, may_go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with boundary.hold_thread():
            held.set()
            may_go_on.wait(10.0)
            order.append("held")

    other = threading.Thread(target=hold)
    other.start()
    assert held.wait(300.0)
    may_go_on.set()
    boundary.pass_call(order.append, ("step",))
    other.join()
    with boundary.hold_thread():
        boundary.pass_call(order.append, ("its own",))
    assert order == ["held", "step", "its own"]


def test_a_training_thread_stuck_in_a_call_is_waited_for_only_for_the_given_time() -> None:
    made: list[Boundary] = []
    inside, may_end = threading.Event(), threading.Event()

    def step() -> bool:
        inside.set()
        return may_end.wait(300.0)

    def train() -> None:
        made.append(boundary := Boundary(lambda: None))
        boundary.pass_call(step)

    training = threading.Thread(target=train)
    training.start()
    assert inside.wait(300.0)
    assert not made[0].is_reached_within(0.01)
    may_end.set()
    assert made[0].is_reached_within(300.0)
    training.join()


def test_a_step_is_certainly_under_way_within_a_call_and_never_if_steps_are_not_calls() -> None:
    calls, loop = Boundary(lambda: None), Boundary(lambda: None)
    assert not calls.is_in_call
    assert calls.pass_call(lambda: calls.is_in_call)
    assert not calls.is_in_call, "the program's own code is at work between two"
    loop.begin_steps()
    assert not loop.is_in_call, "the time to the next step may hold an evaluation"
    assert loop.is_trained_here, "and no other thread can make one"
    assert not calls.is_trained_here
    loop.leave_steps()


def test_the_thread_that_makes_the_first_step_is_the_training_thread() -> None:
    boundary = Boundary(lambda: None)
    boundary.makes_step = lambda about: about == "train"
    boundary.pass_call(lambda: None, about="read the step")

    def train() -> None:
        boundary.pass_call(lambda: None, about="read the step")
        for _ in range(2):
            boundary.pass_call(lambda: is_inside.append(boundary.inside), about="train")

    is_inside: list[bool] = []
    other = threading.Thread(target=train)
    other.start()
    other.join()
    train()
    assert is_inside == [True, True, False, False]
    assert (boundary.runs, boundary.elsewhere) == (3, 4)
