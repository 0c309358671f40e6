"""Hold the locks and leases of the run's own directory and of an adopted logdir.

A program may name a logdir of its own. The run adopts that logdir, and saves there. The adopted
logdir has a lock and a lease, like the run's own directory. It also has a pointer to the run's own
directory. The program's processes inherit the lock of the own directory. So a launch that wants the
adopted logdir follows the pointer, and finds what a killed watchdog has left. If the process is
killed anywhere in `take_logdir`, run.json does not name the adopted logdir yet. Then the pointer is
ignored, and the next launch starts over.

Used by take_logdir.py at the start of a run, and by event_loop.py while the run is active.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from procsv.base.clock import Clock
from procsv.base.errors import LogdirLocked
from procsv.base.run.adoption import root_of, write_pointer
from procsv.base.run.lease import Lease, LeaseFile, LeaseKeeper, find_place
from procsv.base.run.paths import RunPaths, find_paths
from procsv.base.run.records import PRIVATE, whose
from procsv.base.run.run_file import RunFile, find_run_in
from procsv.base.run.stale_memory import HeldDirectory
from procsv.base.system.locks import DirectoryLock
from procsv.watchdog.edge.opening.run_lock import Wait, in_use, name_holder, take_lease


class AdoptedLogdir:
    def __init__(self, logdir: Path, root: Path, lease: Lease, clock: Clock) -> None:
        """`root`: the run's own directory. `lease`: the run's."""
        self._paths, self._root, self._lease, self._clock = find_paths(logdir), root, lease, clock
        self._lock, self._file = DirectoryLock(self._paths.home), LeaseFile(self._paths, has_run_json=False)
        self._keeper: LeaseKeeper | None = None

    def take_logdir(self, wait: Wait, say: Callable[[str], None]) -> None:
        """Take the logdir. LogdirLocked if another run has it, or if it cannot be written.

        `wait`: waits; it raises if the caller cannot wait, or if the run is no longer wanted.
        """
        paths = self._paths
        try:
            paths.home.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            refuse_if_adopted(paths, self._root)
            _refuse_if_active(paths, find_run_in(paths))
            if not self._lock.try_acquire():
                raise _still_held(paths)
            take_lease(paths, self._lease, self._clock, wait, say, has_lock=self._lock.has_flock)
            self._point()
        except OSError as error:
            self._lock.release_lock()
            text = f"the logdir {paths.logdir} cannot be written: {error.strerror}{whose(paths.logdir)}"
            raise LogdirLocked(text) from error
        except BaseException:
            self._lock.release_lock()
            raise
        self._keeper = LeaseKeeper(paths, self._lease, self._clock.monotonic(), has_run_json=False)

    def keep(self, now_s: float) -> str:
        """Renew the lease if that is due. Return who has taken the logdir; "" if it is still ours.

        If the program has deleted and recreated the logdir, restore our files and our lock in it.
        """
        if self._keeper is None or not self._keeper.is_due(now_s):
            return ""
        with contextlib.suppress(OSError):  # full or read-only: try again later
            if self._paths.logdir.is_dir():
                self._paths.home.mkdir(mode=PRIVATE, exist_ok=True)
                self._point()
        taken = self._keeper.renew(now_s, self._clock.wall())
        if taken is not None:
            return name_holder(taken)
        self._lock.relock()
        return ""

    def _point(self) -> None:
        """Write the pointer to the run, unless another run has taken the logdir."""
        write = partial(write_pointer, self._paths.logdir, self._root)
        self._file.change(self._lease.run, lambda fence: write(fence.put))

    def let_go(self) -> None:
        self._file.remove(self._lease.run)
        self._lock.release_lock()


def refuse_if_adopted(paths: RunPaths, root: Path | None = None) -> None:
    """Raise LogdirLocked if another run has adopted this logdir and one of its processes is alive.

    `root`: the own directory of the run that asks. An adoption by this run is no reason to refuse.
    """
    other = root_of(paths.logdir)
    if other is None or other == root:
        return
    theirs = find_paths(other)
    _refuse_if_active(paths, find_run_in(theirs))
    lock = DirectoryLock(theirs.home)
    try:
        if not lock.try_acquire():
            raise _still_held(theirs)
    finally:
        lock.release_lock()


def _refuse_if_active(paths: RunPaths, run: RunFile | None) -> None:
    if run is not None and run.is_active and run.ended_at is None:
        here = find_place()
        lease = Lease(run=run.run, place=here, pid=run.pid, started=0.0, what="procsv launch", since=run.started_at)
        raise LogdirLocked(in_use(paths, lease, here))


def _still_held(paths: RunPaths) -> LogdirLocked:
    holder = LeaseFile(paths).holder()
    if holder is not None and holder.process.is_alive():
        return LogdirLocked(in_use(paths, holder, find_place()))
    return LogdirLocked(
        f"processes of an earlier launch in {paths.logdir} still run; start again once they have ended, or end them with "
        f"`procsv stop {paths.logdir}`"
    )


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
        """`heirs`: the lock on the logdir, which every process that writes there inherits.

        `places`: the run's directories outside its logdir.
        """
        self._places = tuple(places)
        self._root, self._lease, self._heirs, self._clock = paths.logdir, lease, heirs, clock
        self._keeper = LeaseKeeper(paths, lease, clock.monotonic())
        self._adopted = adopted

    def adopt(self, logdir: Path) -> None:
        """Take also the logdir that the program has named. LogdirLocked if that fails."""

        def refuse(seconds: float) -> None:
            raise LogdirLocked(
                f"the logdir {logdir} may be in use by another machine; `procsv launch --logdir {logdir} …` finds out"
            )

        adopted = AdoptedLogdir(logdir, self._root, self._lease, self._clock)
        adopted.take_logdir(refuse, lambda text: None)
        self._adopted = adopted

    def keep(self, now_s: float) -> str:
        """Renew the leases that are due. Return who has taken one, for people; "" if nobody."""
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
        """Release the adopted logdir, if there is one.

        `remove_run` (open_run.py) releases the run's own directory.
        """
        if self._adopted is not None:
            self._adopted.let_go()


def wait_with_lease(paths: RunPaths, lease: Lease, clock: Clock, wait: Wait) -> Wait:
    """Return a `wait` that also renews the lease, for long waits before a run begins.

    No other machine takes a lease that is renewed. If one has taken it all the same, the `wait`
    raises LogdirLocked.
    """
    # run.json is still the previous run's. It must not count as the file of a launch that has taken the logdir from us.
    keeper = LeaseKeeper(paths, lease, clock.monotonic(), has_run_json=False)

    def wait_and_renew(seconds: float) -> None:
        wait(seconds)
        if keeper.is_due(clock.monotonic()):
            taken = keeper.renew(clock.monotonic(), clock.wall())
            if taken is not None:
                raise LogdirLocked(in_use(paths, taken, None))

    return wait_and_renew
