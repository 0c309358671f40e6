"""Sources of terms: where a member learns of the coordinator of its run, and with which keys it speaks to it.

Used by joining.py.  With a secret that all launches have, keys follow from it; without one, they are in the term's file.
"""

from __future__ import annotations

from procsv.base.errors import UserError
from procsv.base.run.paths import RunPaths
from procsv.base.run.terms import Term, newest_term
from procsv.ipc.messaging.derived_keys import RunKeys
from procsv.watchdog.edge.members.forming import with_keys


class TermFiles:
    """In the logdir, which all launches see."""

    def __init__(self, paths: RunPaths, scheduler: str, keys: RunKeys | None) -> None:
        self._paths, self._scheduler, self._keys = paths, scheduler, keys

    def newest(self) -> Term | None:
        """The newest one of this start of the job; UserError if we cannot have its keys."""
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
