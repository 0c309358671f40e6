"""Find the coordinator's term, and the keys to speak to the coordinator.

Used by joining.py. A term is the time for which one coordinator is in charge. Usually the
coordinator writes a file for its term into the logdir, with its address. It writes none if the
launches share a secret and know the coordinator's host and port: then members ask at that address.
Launches that share a secret derive the keys from it. Otherwise the keys are in the term's file.
"""

from __future__ import annotations

from typing import Protocol

from procsv.base.clock import Clock
from procsv.base.errors import UserError
from procsv.base.identity import COMMAND_LINE
from procsv.base.placement import Placement
from procsv.base.run.paths import RunPaths
from procsv.base.run.terms import Term, newest_term
from procsv.ipc.messaging.curve_transport import RunKeys, TcpClient, member_keys
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.member_messages import AskTerm, TermTold
from procsv.ipc.messaging.zmq_transport import Context
from procsv.watchdog.machines.forming import is_at_address, with_keys

ASK_S = 0.3  # between two questions


class Terms(Protocol):
    where: str  # for people
    hint: str  # what to check if there is no term

    def newest(self) -> Term | None:
        """Return the newest term that belongs to this start of the scheduler's job.

        UserError if this launch cannot get the term's keys.
        """

    def close(self) -> None: ...


def find_terms(paths: RunPaths, placement: Placement, keys: RunKeys | None, context: Context, clock: Clock) -> Terms:
    if keys is not None and is_at_address(placement, keys):
        return TermAtAddress(placement, keys, context, clock)
    return TermFiles(paths, placement.scheduler, keys)


class TermFiles:
    """Reads terms from the logdir, which all launches see."""

    def __init__(self, paths: RunPaths, scheduler: str, keys: RunKeys | None) -> None:
        self._paths, self._scheduler, self._keys = paths, scheduler, keys
        self.where = f"in {paths.terms}"
        self.hint = "all launches name the same --logdir, on a filesystem that all of them see"

    def close(self) -> None: ...

    def newest(self) -> Term | None:
        term = newest_term(self._paths, self._scheduler)
        if term is None or term.refused:
            return term
        keys = self._keys
        if (keys.fingerprint if keys is not None else "") == term.secret:
            return with_keys(term, keys) if keys is not None else term
        if keys is None:
            raise UserError("the coordinator was given --secret-file, and this launch was not: give it to all of them")
        if not term.secret:
            raise UserError("this launch was given --secret-file, and the coordinator was not: give it to all of them")
        raise UserError("the --secret-file of the coordinator has another secret: give all launches the same")


class TermAtAddress:
    """Asks the coordinator, at its host and port, which run it forms."""

    def __init__(self, placement: Placement, keys: RunKeys, context: Context, clock: Clock) -> None:
        assert placement.coordinator is not None, "no address to ask at"
        self.where = f"at {placement.coordinator}"
        self.hint = "all launches have the same --secret-file and PROCSV_PORT, and this machine reaches that port"
        self._placement, self._keys, self._clock = placement, keys, clock
        me = Address("", COMMAND_LINE, 1)  # we do not know the run's id yet
        mine = member_keys(keys.members, placement.rank)
        self._client = TcpClient(context, placement.coordinator, mine, keys.coordinator.public, me, clock)
        self._ask_s = 0.0
        self._term: Term | None = None

    def newest(self) -> Term | None:
        self._client.resend_due()
        while (received := self._client.receive()) is not None:
            self._client.acknowledge(received)
            if isinstance(received.body, TermTold):
                self._told(received.body)
        if self._clock.monotonic() >= self._ask_s:
            self._ask_s = self._clock.monotonic() + ASK_S
            self._client.send(AskTerm())
        return self._term

    def _told(self, told: TermTold) -> None:
        before, placement = self._term, self._placement
        if before is not None and (before.run, before.refused) == (told.run, told.refused):
            return
        assert placement.coordinator is not None, "told by nobody"
        host, _, port = placement.coordinator.rpartition(":")
        term = Term(
            number=before.number + 1 if before is not None else 1,
            scheduler=placement.scheduler,
            run=told.run,
            hosts=(host,),
            port=int(port),
            refused=told.refused,
            exit_code=told.exit_code,
        )
        self._term = with_keys(term, self._keys)

    def close(self) -> None:
        self._client.close(linger_ms=0)
