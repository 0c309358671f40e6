"""Take the lease of a logdir, at once or after watching it if another machine may hold it.

Used by open_run.py and held_logdir.py, which have the directory's lock; held_logdir.py renews
the lease. A machine's clock is never compared with another's.
"""

from __future__ import annotations

from collections.abc import Callable

from procsv.base.clock import Clock
from procsv.base.errors import LogdirLocked
from procsv.base.run.lease import (
    Lease,
    LeaseFile,
    LeaseStanding,
    ProcessSpace,
    decode_lease,
    judge_lease,
    taken_by,
)
from procsv.base.run.paths import RunPaths
from procsv.base.system.fenced_rename import Fenced
from procsv.base.terminal import printable
from procsv.base.units import show_time

LEASE_S = 60.0  # a lease that does not change for this long while we watch has expired
LEASE_S_LOOKS_OLD = 15.0  # the same, if the filesystem's own clock says that it was last written LEASE_S ago
SETTLE_S = 2.0  # check again this long after taking over an expired lease: two launches may have done so at once
LOOK_S = 0.5

Wait = Callable[[float], None]


def take_lease(
    paths: RunPaths,
    ours: Lease,
    clock: Clock,
    wait: Wait,
    say: Callable[[str], None],
    *,
    has_lock: bool,
    watches: bool = True,
) -> Lease | None:
    """Write `ours`; return the previous lease if it was another machine's. LogdirLocked if the
    logdir is in use.

    `watches` False: take another machine's lease at once, because it is not renewed and something
    else decides which of two launches counts.
    """
    file, taken_from = LeaseFile(paths), None
    try:
        data, settles = file.read_lease(), False
        if data is not None:
            found = decode_lease(data)
            is_alive = found is not None and found.process.is_alive()
            standing = judge_lease(found, ours.place, has_lock=has_lock, is_alive=is_alive)
            if standing is LeaseStanding.WATCHED:
                if watches:
                    _watch(paths, file, data, clock, wait, say)
                taken_from = found
            elif standing is LeaseStanding.IN_USE and found is not None:
                raise LogdirLocked(in_use(paths, found, ours.place))
            settles = (standing is LeaseStanding.WATCHED and watches) or not has_lock
        file.take_lease(ours, is_new=data is None)
        if settles:
            wait(SETTLE_S)
        if (other := taken_by(file, ours.run)) is not None:
            file.remove(ours.run)
            raise LogdirLocked(in_use(paths, other, ours.place))
    except (FileExistsError, Fenced):
        file.remove(ours.run)
        raise LogdirLocked(f"the logdir {paths.logdir} is in use: another launch has just begun there") from None
    except OSError as error:
        raise LogdirLocked(f"the logdir {paths.logdir} cannot be written: {error.strerror}") from error
    return taken_from


def _watch(paths: RunPaths, file: LeaseFile, data: bytes, clock: Clock, wait: Wait, say: Callable[[str], None]) -> None:
    """Wait until a lease has expired; LogdirLocked as soon as it is renewed."""
    found = decode_lease(data)
    who = name_holder(found) if found is not None else "somebody"
    seconds = LEASE_S_LOOKS_OLD if file.age_s() > LEASE_S else LEASE_S
    say(f"{who} wrote to {paths.logdir} last: waiting {seconds:.0f} s to see whether it still does")
    until_s = clock.monotonic() + seconds
    while clock.monotonic() < until_s:
        wait(LOOK_S)
        if (now := file.read_lease()) not in (data, None):
            holder = decode_lease(now)
            raise LogdirLocked(
                f"the logdir {paths.logdir} is in use: another machine writes there"
                if holder is None
                else in_use(paths, holder, None)
            )
    say(f"{who} has not renewed its lease: this launch takes over {paths.logdir}")


def in_use(paths: RunPaths, lease: Lease, here: ProcessSpace | None) -> str:
    """Say why `paths.logdir` is not available, and what to do about it."""
    when = show_time(lease.since)
    if lease.place == here:
        return (
            f"the logdir {paths.logdir} is in use: process {lease.pid} ({printable(lease.what)}) runs it since {when}; "
            f"look at it with `procsv status {paths.logdir}`, end it with `procsv stop {paths.logdir}`; "
            "to train beside it, use `procsv launch --new` or another --logdir"
        )
    return (
        f"the logdir {paths.logdir} is in use: {name_holder(lease)} runs it since {when}; end it there, with `procsv stop`. "
        f"If that machine is dead, the same command takes over once its lease is {LEASE_S:.0f} s old"
    )


def name_holder(lease: Lease) -> str:
    """Name the holder for people. A lease file may contain anything, so the text is escaped."""
    return printable(f"process {lease.pid} on {lease.place.host} ({lease.what})")
