"""A member that lost its coordinator finds the next one and ignores every other from then on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from procsv.base.errors import UserError
from procsv.base.identity import WATCHDOG
from procsv.base.run.terms import Term, write_term
from procsv.ipc.messaging.member_messages import BeginAnew, Join, Refused, Running, Served
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Waiter
from procsv.watchdog.machines.joining import LOOK_AGAIN_S, BegunAnew, Joined, Joining, Rejoining, is_copy_useless
from tests.support.fake_clock import FakeClock
from tests.watchdog.machines.test_joining import PLACEMENT, SCHEDULER, Coordinator

SERVED = Served("{}", Running(3, 70, is_ready=True, in_step=False))
LOOKS_MAX = 500


class Adrift:
    """A member of the run "before" that has lost its coordinator."""

    def __init__(self, directory: Path, held: contextlib.ExitStack) -> None:
        at = str(directory)
        self.start, self.clock, self._held = Start(WATCHDOG, "before", 1, at, at, at), FakeClock(), held
        joining = Joining(self.start, PLACEMENT, "", self.clock)
        held.callback(joining.context.term)
        self._waiter = Waiter()
        self.rejoining = Rejoining(joining, "before", self._waiter, self.clock)
        held.callback(self.rejoining.stop)
        self.coordinators: list[Coordinator] = []

    def coordinator(self, run: str, answer: Message | None = None, *, has_ended: bool = False) -> Coordinator:
        start = msgspec.structs.replace(self.start, run=run)
        made = Coordinator(start, self.clock, has_ended=has_ended, answer=answer)
        self.coordinators.append(self._held.enter_context(closing(made)))
        return made

    def look(self, served: Served | None = SERVED) -> Joined | None:
        """Look once and return what follows within a second."""
        self.clock.advance(LOOK_AGAIN_S)
        joined = self.rejoining.find_coordinator(lambda: served)
        for coordinator in self.coordinators:
            coordinator.answer()
        self._waiter.wait(0.01)
        return joined

    def wait_joined(self) -> Joined:
        for _ in range(LOOKS_MAX):
            if (joined := self.look()) is not None:
                joined.client.close(linger_ms=0)
                return joined
        raise AssertionError("no coordinator has taken it")


@pytest.fixture
def adrift(tmp_path: Path) -> Iterator[Adrift]:
    with contextlib.ExitStack() as held:
        yield Adrift(tmp_path, held)


def test_the_next_coordinator_learns_what_still_runs(adrift: Adrift) -> None:
    adrift.coordinator("before", has_ended=True)
    assert adrift.look() is None
    assert not adrift.rejoining.follower, "there is no other yet"
    after = adrift.coordinator("after")

    joined = adrift.wait_joined()

    assert joined.term == after.term
    (join,) = after.asked
    assert isinstance(join, Join)
    assert join.served == SERVED


def test_a_newer_coordinator_overrides_the_previous_one_although_it_has_not_answered(
    adrift: Adrift,
) -> None:
    adrift.coordinator("after", has_ended=True)

    assert adrift.look(served=None) is None

    assert adrift.rejoining.follower == "127.0.0.1"


def test_a_coordinator_lost_before_it_answers_is_followed_by_the_next_one(adrift: Adrift) -> None:
    adrift.coordinator("second", has_ended=True)
    for _ in range(3):
        assert adrift.look() is None
    third = adrift.coordinator("third")

    assert adrift.wait_joined().term == third.term


def test_another_start_that_found_the_logdir_taken_is_not_a_coordinator(adrift: Adrift) -> None:
    write_term(adrift.start.paths, Term(scheduler=SCHEDULER, run="another", refused="it is in use", exit_code=73))

    assert adrift.look() is None

    assert not adrift.rejoining.follower


@pytest.mark.parametrize(
    ("answer", "error"), [(BeginAnew("ps.0 has ended"), BegunAnew), (Refused("another command", 2), UserError)]
)
def test_the_answer_that_nothing_continues_is_accepted(adrift: Adrift, answer: Message, error: type[Exception]) -> None:
    adrift.coordinator("after", answer)

    with pytest.raises(error, match=r"ps\.0 has ended|another command"):
        adrift.wait_joined()


@pytest.mark.parametrize(
    ("refusal", "is_useless"),
    [
        (Refused("replaced", 75), True),
        (Refused("nobody came", 75, has_run=False), False),
        (Refused("another command", 2), False),
    ],
)
def test_the_copy_of_the_chiefs_memory_is_kept_if_no_run_has_begun(
    adrift: Adrift, refusal: Refused, is_useless: bool
) -> None:
    adrift.coordinator("after", refusal)
    with pytest.raises(UserError) as raised:
        adrift.wait_joined()
    assert is_copy_useless(raised.value) == is_useless
