"""Hold the locks and leases of the run's own directory and of an adopted logdir.

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
        """`places`: the run's directories outside its logdir."""
        self._places = tuple(places)
        self._root, self._lease, self._heirs, self._clock = paths.logdir, lease, heirs, clock
        self._keeper = LeaseKeeper(paths, lease, clock.monotonic())
        self._adopted = adopted

    def adopt(self, logdir: Path) -> None:
        """Take another logdir besides the run's own. LogdirLocked if that does not succeed at once."""

        def refuse(seconds: float) -> None:
            raise LogdirLocked(
                f"the logdir {logdir} may be in use by another machine; `procsv launch --logdir {logdir} …` finds out"
            )

        adopted = AdoptedLogdir(logdir, self._root, self._lease, self._clock)
        adopted.take_logdir(refuse, lambda text: None)
        self._adopted = adopted

    def keep(self, now_s: float) -> str:
        """Renew the leases if that is due; return who has taken one, as text for people, or ""."""
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
        """Release an adopted logdir. The run's own directory is released with the rest of the run
        (open_run.py).
        """
        if self._adopted is not None:
            self._adopted.let_go()


def wait_with_lease(paths: RunPaths, lease: Lease, clock: Clock, wait: Wait) -> Wait:
    """Return a `wait` that also renews the lease, for long waits before a run begins.

    LogdirLocked if another machine has taken the lease; a lease that is renewed is not taken.
    """
    # No run.json: the file is still the previous run's.
    keeper = LeaseKeeper(paths, lease, clock.monotonic(), has_run_json=False)

    def wait_and_renew(seconds: float) -> None:
        wait(seconds)
        if keeper.is_due(clock.monotonic()):
            taken = keeper.renew(clock.monotonic(), clock.wall())
            if taken is not None:
                raise LogdirLocked(in_use(paths, taken, None))

    return wait_and_renew
