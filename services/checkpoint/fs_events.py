"""Turn filesystem events into hints that a directory has changed.

process.py uses it.  Events come late or get lost, so the directory is also scanned at intervals.
This module reads no checkpoint and decides nothing.  A thread watches the directory and passes
hints on, except for changes that this process made itself.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from procsv.base.clock import Clock

if TYPE_CHECKING:
    from watchdog.observers.api import BaseObserver

# On these filesystems, another machine's writes raise no event here.
NETWORK_FILESYSTEMS = (
    "nfs",
    "cifs",
    "smb",
    "fuse",
    "9p",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "glusterfs",
    "afs",
    "ocfs2",
)

# For this long after a commit begins, events of the commit's own files are ignored.  Events of removals arrive 0.5 s
# after the removal.
OWN_S = 3.0


class OwnChanges:
    """Files that this process itself puts in place or removes.

    A scan for such a change would find nothing new, and would delay a commit.  If another process
    changes the same file at the same time, the next periodic scan finds it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_s: dict[str, float] = {}

    def expect(self, paths: Iterable[str]) -> None:
        """Notes absolute paths that are about to change.

        Any thread may call this, but never two at once.
        """
        now_s = self._clock.monotonic()
        still = {path: until_s for path, until_s in self._until_s.items() if until_s > now_s}
        self._until_s = still | dict.fromkeys(paths, now_s + OWN_S)

    def has(self, path: str) -> bool:
        return self._until_s.get(path, -math.inf) > self._clock.monotonic()


class Watch:
    """Watches one directory.

    Calls `on_change` from its own thread when another process may have added or removed a
    checkpoint.
    """

    def __init__(self, on_change: Callable[[], None], own: OwnChanges) -> None:
        self._on_change, self._own = on_change, own
        self._observer: BaseObserver | None = None
        self._watched: tuple[int, int] | None = None  # device and inode of the directory
        self._has_complained = False

    def keep_watching(self, directory: Path) -> None:
        """Watches `directory` if possible, also after it was replaced.  Never raises.

        Only one thread may call this at a time.
        """
        try:
            there = directory.stat()
        except OSError:
            self.close()
            return
        identity = (there.st_dev, there.st_ino)
        if identity == self._watched:
            return
        self.close()
        self._watched = identity
        if is_on_network(directory):
            return
        try:
            self._observe(directory)
        except OSError as error:  # EMFILE, ENOSPC: the machine's limits of inotify
            self._stop_observer()
            if not self._has_complained:
                self._has_complained = True
                text = f"the system does not report changes in {directory} ({error.strerror}): procsv scans it every few seconds instead"
                print(f"procsv checkpoint: {text}", file=sys.stderr)

    def _observe(self, directory: Path) -> None:
        from watchdog.events import (
            DirDeletedEvent,
            FileCreatedEvent,
            FileDeletedEvent,
            FileMovedEvent,
            FileSystemEvent,
            FileSystemEventHandler,
        )
        from watchdog.observers import Observer

        watch, name = self, str(directory)

        class Handler(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:
                if event.is_directory and os.fsdecode(event.src_path) == name:
                    watch._watched = None  # the directory is gone; a new one may get the same inode
                if event.is_directory or watch.is_news(event.src_path) or watch.is_news(event.dest_path):
                    watch._on_change()

        self._observer = Observer()
        self._observer.start()
        kinds: list[type[FileSystemEvent]] = [FileMovedEvent, FileCreatedEvent, FileDeletedEvent, DirDeletedEvent]
        self._observer.schedule(Handler(), name, recursive=False, event_filter=kinds)

    def is_news(self, path: bytes | str) -> bool:
        """Whether this file's change may mean that another process added or removed a
        checkpoint.
        """
        return is_of_interest(path) and not self._own.has(os.fsdecode(path))

    def close(self) -> None:
        self._watched = None
        self._stop_observer()

    def _stop_observer(self) -> None:
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.stop()  # its threads end by themselves; do not wait for them


def is_of_interest(path: bytes | str) -> bool:
    """Whether a file may be part of a checkpoint: an index, or a `checkpoint` file of any name."""
    name = os.path.basename(os.fsdecode(path))  # noqa: PTH119  often "", which is no Path
    return name.endswith(".index") or (bool(name) and "." not in name)


def is_on_network(directory: Path) -> bool:
    """Whether the directory is on a network filesystem."""
    try:
        mounts = psutil.disk_partitions(all=True)
    except OSError:
        return False
    points = [(mount.mountpoint, mount.fstype) for mount in mounts]
    return filesystem_of(os.path.realpath(directory), points).startswith(NETWORK_FILESYSTEMS)


def filesystem_of(path: str, mounts: Iterable[tuple[str, str]]) -> str:
    """Returns the type of the filesystem under an absolute, real path.

    If two filesystems are mounted at one point, the later one hides the other.
    """
    over = [(point, kind) for point, kind in mounts if f"{path}/".startswith(point.rstrip("/") + "/")]
    return max(enumerate(over), key=lambda mount: (len(mount[1][0]), mount[0]))[1][1] if over else ""
