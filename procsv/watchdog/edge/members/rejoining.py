"""A member that has lost its coordinator looks for the one that follows it, while its task goes on.

Used by member_loop.py, which calls `look` in its turns.  What counts is the newest term of our own start of the run: who has written
it has the logdir, and from then on the coordinator before, which may only have been cut off, is nobody.  Killed in here: as any
member that is lost.
"""

from __future__ import annotations

from collections.abc import Callable

from procsv.base.clock import Clock
from procsv.ipc.messaging.member_messages import Served
from procsv.ipc.messaging.zmq_transport import Waiter
from procsv.watchdog.edge.members.joining import LOOK_AGAIN_S, Asked, Joined, Joining

LINGER_MS = 500  # for the acknowledgement of an answer


class Rejoining:
    def __init__(self, joining: Joining, run: str, waiter: Waiter, clock: Clock) -> None:
        """`run`: of the coordinator that we have."""
        self._joining, self._run, self._waiter, self._clock = joining, run, waiter, clock
        self._asked: Asked | None = None
        self._look_s = 0.0
        self.follower = ""  # the host of a newer coordinator than the one that we have, whose word counts no more then

    def look(self, served: Callable[[], Served | None]) -> Joined | None:
        """The coordinator that has taken us, if one has since the last call.

        `served`: what is told to one that is found; None: not yet.  UserError if we are refused, BegunAnew.
        """
        asked = self._asked
        if asked is not None and (joined := asked.hear()) is not None:
            self._run, self._asked, self.follower = joined.term.run, None, ""
            return joined
        if self._clock.monotonic() >= self._look_s:
            self._look_s = self._clock.monotonic() + LOOK_AGAIN_S
            self._look_for_term(served)
        return None

    def _look_for_term(self, served: Callable[[], Served | None]) -> None:
        """A refusal is no term: another start of ours may have found the logdir taken, by the very run that we are of."""
        term = self._joining.newest_term()
        if term is None or term.refused or term.run == self._run:
            return
        self.follower = term.hosts[0]
        if self._asked is not None and self._asked.term.run == term.run:
            return
        self.stop()
        if (told := served()) is not None:
            self._asked = self._joining.ask(term, told)
            self._waiter.add(self._asked.client)

    def stop(self) -> None:
        """No answer is waited for any more."""
        if self._asked is not None:
            self._waiter.remove(self._asked.client)
            self._asked.close(linger_ms=LINGER_MS)
            self._asked = None
