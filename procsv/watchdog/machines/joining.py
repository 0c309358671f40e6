"""A member's way into the run: finds the coordinator's term, connects, and asks to host its task.

Called by member.py, before anything is started; and by `Rejoining`, once the coordinator is lost.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from procsv import __version__
from procsv.base import exit_codes
from procsv.base.clock import Clock
from procsv.base.errors import UserError
from procsv.base.placement import Placement
from procsv.base.run.run_file import read_run
from procsv.base.run.terms import Term
from procsv.base.system.locks import DirectoryLock
from procsv.base.system.processes import boot_id
from procsv.base.units import show_duration
from procsv.ipc.messaging.curve_transport import RunKeys, TcpClient, can_be_found, member_keys, own_host
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.member_messages import (
    BeginAnew,
    Join,
    LaunchLock,
    MirrorOffer,
    MustWait,
    Refused,
    Served,
    Welcome,
)
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Context, Waiter, new_context
from procsv.watchdog.machines.remote_tasks import member_id
from procsv.watchdog.machines.term_sources import find_terms

LOOK_S = 0.1  # how often a term is looked for
LOOK_AGAIN_S = 1.0  # and for another one, while the coordinator of this one does not answer
OVER_S = 5.0  # a run that ends to begin again at once has begun by then
SAID_AFTER_S = 5.0
REFUSAL_S = 2.0  # a refusal that an earlier start of the same cluster has left is followed by a term of this one
LINGER_MS = 500  # for the acknowledgement of an answer


class Joined:
    """The link to the coordinator that has taken us."""

    def __init__(self, client: TcpClient, term: Term, host: str, welcome: Welcome) -> None:
        """`host`: of the term's, the one that was found."""
        self.client, self.term, self.host, self.welcome = client, term, host, welcome


class BegunAnew(Exception):
    """The run before does not go on, as the text says: we are to ask again, with nothing of it."""


class Asked:
    """One question to the coordinator of a term, and the wait for its answer, which holds nobody up."""

    def __init__(self, client: TcpClient, term: Term, host: str, question: Join) -> None:
        self.client, self.term, self._host, self._is_answered = client, term, host, False
        self.why_waiting = ""  # as the coordinator has said
        client.send_reliable(question)

    def poll_answer(self) -> Joined | None:
        """The answer, if it has come.  UserError if it is a refusal, BegunAnew.

        Whatever else comes is for a launch that has had our place before, and is not acknowledged: nobody has carried it out.
        """
        self.client.resend_due()
        while (received := self.client.receive()) is not None:
            match received.body:
                case Refused(why, exit_code):
                    self.client.acknowledge(received)
                    raise UserError(why, exit_code)
                case BeginAnew(why):
                    self.client.acknowledge(received)
                    raise BegunAnew(why)
                case Welcome() as welcome:
                    self.client.acknowledge(received)
                    self._is_answered = True
                    return Joined(self.client, self.term, self._host, welcome)
                case MustWait(why):
                    self.why_waiting = why
        return None

    def close(self, linger_ms: int = 0) -> None:
        """Nobody waits for the answer any more; the client of one that has come is its owner's."""
        if not self._is_answered:
            self.client.close(linger_ms)


class RunIsOver(UserError):
    """The run that we are of has ended without us, with that exit code."""


class Joining:
    def __init__(
        self,
        start: Start,
        placement: Placement,
        address: str,
        clock: Clock,
        keys: RunKeys | None = None,
        offer: Callable[[], MirrorOffer | None] = lambda: None,
        lock: LaunchLock | None = None,
    ) -> None:
        """`address`: of our task, for TensorFlow.  `keys`: those that follow from the launches' secret, if they have one.

        `offer`: what we have of the memory of a chief whose machine is lost, when a coordinator is asked.  `lock`: of our own directory.
        """
        self.offer, self._lock = offer, lock
        self._start, self._placement, self._address, self._clock = start, placement, address, clock
        self._context = new_context()
        self._terms = find_terms(start.paths, placement, keys, self._context, clock)

    def read_end(self, run: str) -> int | None:
        """The exit code of that run; None as long as it goes on, or run.json, which another may have written since, cannot tell."""
        found = read_run(self._start.paths.run_json)
        return found.exit_code if found is not None and found.run == run else None

    @property
    def context(self) -> Context:
        return self._context

    def close(self) -> None:
        """No other coordinator is looked for any more; the context is the caller's to end."""
        self._terms.close()

    def newest_term(self) -> Term | None:
        """Of this start of the run by its scheduler."""
        return self._terms.newest()

    def ask(self, term: Term, served: Served | None = None) -> Asked:
        """Asks the coordinator of `term`.  `served`: what we have of the run before."""
        host = next(filter(can_be_found, term.hosts), term.hosts[0])
        me = Address(term.run, member_id(self._placement.rank), 1)
        keys = member_keys(term.client_secret, self._placement.rank)
        client = TcpClient(self._context, f"{host}:{term.port}", keys, term.server_key, me, self._clock)
        return Asked(client, term, host, self._question(served))

    def join(self, wait: Callable[[float], None], say: Callable[[str], None]) -> Joined:
        """Returns once the coordinator has taken us.  UserError if it refuses, or does not come.  `wait` raises at a signal."""
        began_s, is_said = self._clock.monotonic(), False
        limit_s = self._start.settings.coordinator_timeout_s
        while (waited_s := self._clock.monotonic() - began_s) < limit_s:
            term = self.newest_term()
            if term is not None and term.refused:
                if waited_s > REFUSAL_S:
                    why = "" if term.exit_code == exit_codes.DONE else "the coordinator could not begin: "
                    raise UserError(f"{why}{term.refused}", term.exit_code)
            elif term is not None and (joined := self._ask(term, wait, say)) is not None:
                return joined
            elif waited_s > SAID_AFTER_S and not is_said:
                is_said = True
                say(f"{self._placement.task}: waiting for the coordinator, which has {self._placement.tasks[0]}")
            wait(LOOK_S)
        raise UserError(
            f"no coordinator was found {self._terms.where} within {show_duration(limit_s)}: see that {self._placement.tasks[0]} "
            f"was launched, and that {self._terms.hint}",
            exit_codes.RESUMABLE,
        )

    def _ask(self, term: Term, wait: Callable[[float], None], say: Callable[[str], None]) -> Joined | None:
        """The coordinator's answer; None if it has ended meanwhile, or there was none.

        It is waited for somewhat longer than the coordinator waits for the others: it knows better who is missing.
        """
        settings = self._start.settings
        limit_s = settings.coordinator_timeout_s + settings.peer_timeout_s
        asked, waiter, said = self.ask(term), Waiter(), ""
        waiter.register(asked.client)
        try:
            deadline_s, look_s = self._clock.monotonic() + limit_s, self._clock.monotonic() + LOOK_AGAIN_S
            while self._clock.monotonic() < deadline_s:
                waiter.wait(LOOK_S)
                wait(0.0)
                if (joined := asked.poll_answer()) is not None:
                    return joined
                if asked.why_waiting != said:
                    said = asked.why_waiting
                    say(f"{self._placement.task}: waiting to join the run: {said}")
                if self._clock.monotonic() >= look_s:
                    look_s = self._clock.monotonic() + LOOK_AGAIN_S
                    newest = self.newest_term()
                    if newest is None or newest.run != term.run:  # the run that it is of has ended
                        return None
            return None
        finally:
            asked.close()

    def _question(self, served: Served | None) -> Join:
        return Join(
            task=self._placement.task,
            host=self._placement.host or own_host(),
            address=self._address,
            version=__version__,
            line=(self._start.target, *self._start.args),
            pid=os.getpid(),
            served=served,
            mirror=self.offer(),
            launch=self._start.run,
            lock=self._lock,
        )


class Rejoining:
    """A member that has lost its coordinator looks for the one that follows it, while its task goes on.

    Used by member_loop.py, which calls `look` in its turns.  What counts is the newest term of our own start of the run: who has
    written it has the logdir, and from then on the coordinator before, which may only have been cut off, is nobody.  Killed in here:
    as any member that is lost.
    """

    def __init__(self, joining: Joining, run: str, waiter: Waiter, clock: Clock) -> None:
        """`run`: of the coordinator that we have."""
        self._joining, self._run, self._waiter, self._clock = joining, run, waiter, clock
        self._asked: Asked | None = None
        self._look_s = 0.0
        self._over_s: float | None = None  # since when our run is seen to be over
        self.follower = ""  # the host of a newer coordinator than the one that we have, whose word counts no more then

    def find_coordinator(self, served: Callable[[], Served | None]) -> Joined | None:
        """The coordinator that has taken us, if one has since the last call.

        `served`: what is told to one that is found; None: not yet.  UserError if we are refused, RunIsOver, BegunAnew.
        """
        asked = self._asked
        if asked is not None and (joined := asked.poll_answer()) is not None:
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
            self._look_for_end()
            return
        self.follower = term.hosts[0]
        if self._asked is not None and self._asked.term.run == term.run:
            return
        self.stop()
        if (told := served()) is not None:
            with contextlib.suppress(OSError):  # no descriptors left: looked for again
                self._asked = self._joining.ask(term, told)
                self._waiter.register(self._asked.client)

    def _look_for_end(self) -> None:
        """RunIsOver where it is, and none follows that begins at once, as where a machine was lost and a spare one has its place."""
        exit_code, now_s = self._joining.read_end(self._run), self._clock.monotonic()
        if exit_code is None:
            self._over_s = None
        elif self._over_s is None:
            self._over_s = now_s
        elif now_s >= self._over_s + OVER_S:
            raise RunIsOver("the run has ended without this launch", exit_code)

    def stop(self) -> None:
        """No answer is waited for any more."""
        if self._asked is not None:
            self._waiter.remove(self._asked.client)
            self._asked.close(linger_ms=LINGER_MS)
            self._asked = None


def describe_lock(lock: DirectoryLock, wall_s: float) -> LaunchLock | None:
    """`lock`, of this launch's own directory, which was taken just now, as the coordinator is told of it.

    None where the filesystem has none that could be relied on.  Takes no lock itself.
    """
    if not lock.is_firm or lock.fd < 0:
        return None
    there = os.fstat(lock.fd)
    return LaunchLock(f"{boot_id()}:{there.st_dev}:{there.st_ino}", wall_s)
