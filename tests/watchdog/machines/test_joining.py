"""A member finds the present coordinator, whatever an earlier one has left."""

from __future__ import annotations

import contextlib
from contextlib import closing
from pathlib import Path

import msgspec

from procsv.base.cluster import CHIEF
from procsv.base.identity import WATCHDOG, TaskId
from procsv.base.placement import Placement
from procsv.base.run.terms import Term, withdraw_terms, write_term
from procsv.ipc.messaging.curve_transport import RunKeys, TcpServer
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.member_messages import Join, Welcome
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import new_context
from procsv.watchdog.machines.joining import LOOK_AGAIN_S, Joining
from tests.support.fake_clock import FakeClock

WORKER, SCHEDULER = TaskId("worker", 0), "tf-config:1"
PLACEMENT = Placement(
    kind="tf-config",
    rank=1,
    ranks=2,
    launch=WORKER,
    task=WORKER,
    tasks=(CHIEF, WORKER),
    scheduler=SCHEDULER,
    host="n2",
    addresses=None,
    coordinator=None,
)


class Coordinator:
    """Announces its address and answers every client. One that has ended hears nobody."""

    def __init__(
        self, start: Start, clock: FakeClock, *, has_ended: bool = False, answer: Message | None = None
    ) -> None:
        """With `answer` None everybody is welcome."""
        keys, self.start, self._has_ended = RunKeys.new(), start, has_ended
        self._answer, self.asked = answer or Welcome(start.text()), list[Message]()
        self._context = new_context()
        self._server = TcpServer(
            self._context, 0, keys.coordinator, keys.of_members(1), Address(start.run, WATCHDOG, 1), clock
        )
        self.term = write_term(
            start.paths,
            Term(
                scheduler=SCHEDULER,
                run=start.run,
                hosts=("127.0.0.1",),
                port=self._server.port,
                server_key=keys.coordinator.public,
                client_secret=keys.members,
            ),
        )

    def answer(self) -> None:
        if self._has_ended:
            return
        while (received := self._server.receive()) is not None:
            if isinstance(received.body, Join):
                self.asked.append(received.body)
                self._server.send_reliable(received.who, self._answer, re=received.seq)

    def withdraw(self) -> None:
        withdraw_terms(self.start.paths, self.start.run)

    def close(self) -> None:
        self._server.close()
        self._context.term()


def test_a_run_is_found_that_follows_an_ended_one_with_the_same_number(tmp_path: Path) -> None:
    clock, at = FakeClock(), str(tmp_path)
    start = Start(WATCHDOG, "before", 1, at, at, at)
    joining = Joining(start, PLACEMENT, "", clock)
    with contextlib.ExitStack() as held:
        held.callback(joining.context.term)
        before = held.enter_context(closing(Coordinator(start, clock, has_ended=True)))
        there = [before]

        def wait(seconds: float) -> None:
            clock.advance(seconds or LOOK_AGAIN_S)  # 0.0: it has asked a coordinator and waits for the answer
            if there == [before] and clock.monotonic() > 3 * LOOK_AGAIN_S:
                before.withdraw()
                after = Coordinator(msgspec.structs.replace(start, run="after"), clock)
                there.append(held.enter_context(closing(after)))
            for coordinator in there:
                coordinator.answer()

        joined = joining.join(wait, print)

        joined.client.close(linger_ms=0)
        assert (joined.term.run, joined.term.number) == ("after", before.term.number)
