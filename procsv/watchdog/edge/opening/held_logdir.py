"""The logdir of a run, as long as it is ours: the lock and the lease of the run's own directory, and of one that it adopts.

Used by event_loop.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from procsv.base.clock import Clock
from procsv.base.errors import LogdirLocked
from procsv.base.run.lease import Lease, LeaseKeeper
from procsv.base.run.paths import RunPaths
from procsv.base.run.stale_memory import HeldDirectory
from procsv.base.system.locks import DirectoryLock
from procsv.watchdog.edge.opening.adopted_logdir import AdoptedLogdir
from procsv.watchdog.edge.opening.logdir_lease import Wait, in_use, name_holder


class HeldLogdir:
    def __init__(
        self,
        paths: RunPaths,
        lease: Lease,
        heirs: DirectoryLock,
        clock: Clock,
        adopted: AdoptedLogdir | None = None,
        places: Iterable[HeldDirectory] = (),
    ) -> None:
        """`places`: the directories of the run outside of its logdir."""
        self._places = tuple(places)
        self._root, self._lease, self._heirs, self._clock = paths.logdir, lease, heirs, clock
        self._keeper = LeaseKeeper(paths, lease, clock.monotonic())
        self._adopted = adopted

    def adopt(self, logdir: Path) -> None:
        """Takes another one beside it.  LogdirLocked if that does not go at once."""

        def refuse(seconds: float) -> None:
            raise LogdirLocked(
                f"the logdir {logdir} may be in use by another machine; `procsv launch --logdir {logdir} …` looks whether it is"
            )

        adopted = AdoptedLogdir(logdir, self._root, self._lease, self._clock)
        adopted.take_logdir(refuse, lambda text: None)
        self._adopted = adopted

    def keep(self, now_s: float) -> str:
        """Renews the leases, if it is time; who has taken one, for people, or ""."""
        taker = self._adopted.keep(now_s) if self._adopted is not None else ""
        if taker or not self._keeper.is_due(now_s):
            return taker
        taken = self._keeper.renew(now_s, self._clock.wall())
        if taken is not None:
            return name_holder(taken)
        self._heirs.relock()
        for place in self._places:
            place.keep_held()
        return ""

    def let_go(self) -> None:
        """Of what was adopted; the run's own directory is let go of with the rest of the run (open_run.py)."""
        if self._adopted is not None:
            self._adopted.let_go()


def wait_with_lease(paths: RunPaths, lease: Lease, clock: Clock, wait: Wait) -> Wait:
    """`wait`, for who waits for minutes with the logdir in hand before a run begins: renews the lease meanwhile.

    LogdirLocked if another machine has taken it; nobody would take a lease that is renewed.
    """
    keeper = LeaseKeeper(
        paths, lease, clock.monotonic(), has_run_json=False
    )  # run.json is still that of the run before

    def wait_and_renew(seconds: float) -> None:
        wait(seconds)
        if keeper.is_due(clock.monotonic()):
            taken = keeper.renew(clock.monotonic(), clock.wall())
            if taken is not None:
                raise LogdirLocked(in_use(paths, taken, None))

    return wait_and_renew
