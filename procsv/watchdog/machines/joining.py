"""Join a run as a member: find the coordinator's term, connect, and ask to host our task.

Called by member.py before anything is started, and by `Rejoining` after the coordinator was lost.
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

LOOK_S = 0.1  # between two looks for a term
LOOK_AGAIN_S = 1.0  # between two looks for a newer term, while the coordinator does not answer
OVER_S = 5.0  # a run that restarts right after its end has begun again within this time
SAID_AFTER_S = 5.0  # when to tell the user that we wait for the coordinator
REFUSAL_S = 2.0  # believe a refusal only after this time: a coordinator that has the logdir replaces a stale one sooner
LINGER_MS = 500  # for acknowledgements to be sent


class Joined:
    """The link to the coordinator that accepted us."""

    def __init__(self, client: TcpClient, term: Term, host: str, welcome: Welcome) -> None:
        """`host`: the name, of those in `term.hosts`, under which we found the coordinator."""
        self.client, self.term, self.host, self.welcome = client, term, host, welcome


class BegunAnew(Exception):
    """The previous run does not continue; the text says why. We must end our task and ask again."""


class Asked:
    """A question to the coordinator of a term. Its answer is polled, so that waiting for it blocks
    nothing.
    """

    def __init__(self, client: TcpClient, term: Term, host: str, question: Join) -> None:
        self.client, self.term, self._host, self._is_accepted = client, term, host, False
        self.why_waiting = ""  # the coordinator's reason
        client.send_reliable(question)

    def poll_answer(self) -> Joined | None:
        """Return the answer; None if it has not come yet. UserError if it is a refusal; BegunAnew if
        our previous run does not continue.

        Other messages are orders for a launch that had our place before. They are not acknowledged,
        because nothing has carried them out.
        """
        self.client.resend_due()
        while (received := self.client.receive()) is not None:
            match received.body:
                case Refused(why, exit_code, has_run):
                    self.client.acknowledge(received)
                    raise UserError(why, exit_code) if has_run else NoRun(why, exit_code)
                case BeginAnew(why):
                    self.client.acknowledge(received)
                    raise BegunAnew(why)
                case Welcome() as welcome:
                    self.client.acknowledge(received)
                    self._is_accepted = True
                    return Joined(self.client, self.term, self._host, welcome)
                case MustWait(why):
                    self.why_waiting = why
        return None

    def close(self, linger_ms: int = 0) -> None:
        """Stop waiting for the answer, and close the client.

        If we were accepted, leave the client open: it belongs to the Joined that was returned.
        """
        if not self._is_accepted:
            self.client.close(linger_ms)


class RunIsOver(UserError):
    """Our run has ended without us, with that exit code."""


class NoRun(UserError):
    """The coordinator has given up before a run began."""


def is_copy_useless(error: UserError) -> bool:
    """Whether no launch will need this member's copy of the chief's memory after this refusal.

    Either the run has ended, or it continues without us (RESUMABLE). If the coordinator has given
    up before a run began, the next start of the job needs the copy.
    """
    return isinstance(error, RunIsOver) or (error.exit_code == exit_codes.RESUMABLE and not isinstance(error, NoRun))


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
        """`address`: our task's, for TensorFlow. `keys`: derived from the launches' secret, if they
        have one. `offer`: called before each request to join, it says how to fetch our copy of a
        lost chief's memory. `lock`: on our own directory.
        """
        self.offer, self._lock = offer, lock
        self._start, self._placement, self._address, self._clock = start, placement, address, clock
        self._context = new_context()
        self._terms = find_terms(start.paths, placement, keys, self._context, clock)

    def read_end(self, run: str) -> int | None:
        """Return the exit code of that run; None while it is active, or if another run has replaced
        run.json.
        """
        found = read_run(self._start.paths.run_json)
        return found.exit_code if found is not None and found.run == run else None

    @property
    def context(self) -> Context:
        return self._context

    def close(self) -> None:
        """Stop looking for coordinators. The caller ends the context."""
        self._terms.close()

    def newest_term(self) -> Term | None:
        """Return the newest term of this start of the job."""
        return self._terms.newest()

    def ask(self, term: Term, served: Served | None = None) -> Asked:
        """Ask the coordinator of `term`. `served`: what we have of the previous run."""
        host = next(filter(can_be_found, term.hosts), term.hosts[0])
        me = Address(term.run, member_id(self._placement.rank), 1)
        keys = member_keys(term.client_secret, self._placement.rank)
        client = TcpClient(self._context, f"{host}:{term.port}", keys, term.server_key, me, self._clock)
        return Asked(client, term, host, self._question(served))

    def join(self, wait: Callable[[float], None], say: Callable[[str], None]) -> Joined:
        """Wait until a coordinator accepts us. UserError if it refuses or does not come; `wait`
        raises at a signal.
        """
        began_s, is_said = self._clock.monotonic(), False
        limit_s = self._start.settings.coordinator_timeout_s
        while (waited_s := self._clock.monotonic() - began_s) < limit_s:
            term = self.newest_term()
            if term is not None and term.refused:
                if waited_s > REFUSAL_S:
                    why = "" if term.exit_code == exit_codes.DONE else "the coordinator could not start: "
                    raise UserError(f"{why}{term.refused}", term.exit_code)
            elif term is not None and (joined := self._ask(term, wait, say)) is not None:
                return joined
            elif waited_s > SAID_AFTER_S and not is_said:
                is_said = True
                say(f"{self._placement.task}: waiting for the coordinator, which has {self._placement.tasks[0]}")
            wait(LOOK_S)
        raise UserError(
            f"no coordinator was found {self._terms.where} within {show_duration(limit_s)}: check that {self._placement.tasks[0]} "
            f"was launched, and that {self._terms.hint}",
            exit_codes.RESUMABLE,
        )

    def _ask(self, term: Term, wait: Callable[[float], None], say: Callable[[str], None]) -> Joined | None:
        """Return the coordinator's answer; None if its run has ended, or the answer does not come.

        We wait a little longer than the coordinator waits for the other launches, so that it gives
        up first: it knows which launch is missing, and can say so.
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
                    if newest is None or newest.run != term.run:  # that coordinator's run has ended
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
    """Finds the next coordinator after the loss of ours, while the task continues.

    Used by member_loop.py, which polls `find_coordinator` in each turn. The coordinator that wrote
    the newest term of this start of the job has the logdir. Once we have found that term, we ignore
    the previous coordinator, even if it is alive and only cut off. If we are killed in here, the
    run has lost a member, as at any other time.
    """

    def __init__(self, joining: Joining, run: str, waiter: Waiter, clock: Clock) -> None:
        """`run`: the current coordinator's."""
        self._joining, self._run, self._waiter, self._clock = joining, run, waiter, clock
        self._asked: Asked | None = None
        self._look_s = 0.0
        self._over_s: float | None = None  # when our run was first seen to be over
        self.follower = ""  # the host of a newer coordinator; once it is set, we no longer obey ours

    def find_coordinator(self, served: Callable[[], Served | None]) -> Joined | None:
        """Return the coordinator that has accepted us since the last call, if any.

        `served`: returns what we still have of the run, to tell the new coordinator; None if we do
        not know that yet. UserError if the coordinator refuses us; RunIsOver if the run has ended
        without us; BegunAnew if we must end our task and ask again.
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
        """Ask the coordinator of a newer term, if there is one. Otherwise check whether our run has
        ended.

        Ignore a refusal: it may come from a second coordinator of this job, which found the logdir
        taken by our own run.
        """
        term = self._joining.newest_term()
        if term is None or term.refused or term.run == self._run:
            self._look_for_end()
            return
        self.follower = term.hosts[0]
        if self._asked is not None and self._asked.term.run == term.run:
            return
        self.stop()
        if (told := served()) is not None:
            with contextlib.suppress(OSError):  # no descriptors left: try again later
                self._asked = self._joining.ask(term, told)
                self._waiter.register(self._asked.client)

    def _look_for_end(self) -> None:
        """Raise RunIsOver if our run has ended and no other run has begun within OVER_S.

        Another run begins, for example, when a spare takes the place of a lost machine.
        """
        exit_code, now_s = self._joining.read_end(self._run), self._clock.monotonic()
        if exit_code is None:
            self._over_s = None
        elif self._over_s is None:
            self._over_s = now_s
        elif now_s >= self._over_s + OVER_S:
            raise RunIsOver("the run has ended without this launch", exit_code)

    def stop(self) -> None:
        """Stop waiting for an answer."""
        if self._asked is not None:
            self._waiter.remove(self._asked.client)
            self._asked.close(linger_ms=LINGER_MS)
            self._asked = None


def describe_lock(lock: DirectoryLock, wall_s: float) -> LaunchLock | None:
    """Describe the lock just taken on this launch's own directory, for the coordinator.

    None if the filesystem has no reliable locks. `wall_s`: the Unix time when the lock was taken.
    """
    if not lock.has_flock or lock.fd < 0:
        return None
    there = os.fstat(lock.fd)
    return LaunchLock(f"{boot_id()}:{there.st_dev}:{there.st_ino}", wall_s)
