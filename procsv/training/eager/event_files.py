"""Save the lengths of tf.summary event files with the state, and cut the files back to them.

CheckpointManager uses this for a program's own loop. A resumed loop repeats the steps after the
restored state, and records them once more. So each snapshot notes how long the event files of its
process are. The next attempt cuts the files back to these lengths. TensorBoard and programs that
read the files then find each point once.
"""

from __future__ import annotations

import math
import os
import re
import weakref
from pathlib import Path
from typing import Any

from procsv.base.journal.file import read_spawns_since
from procsv.base.run.manifest import MANIFEST_SUFFIX
from procsv.base.run.saved_step import manifest_at
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.training.eager import private
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.log import log
from procsv.training.summaries.marks import mark_once

# An event file's name has the time at which it was created in seconds, the host, the pid, a number and a suffix.
EVENT_FILE = re.compile(r"events\.out\.tfevents\.(\d+)\..*\.(\d+)\.\d+\..*")
FILES_MAX = 16  # of one process; a snapshot has room for this many names

Sizes = dict[str, int]  # bytes by file name; a process never uses a name twice, not even in another directory


class EventFiles:
    """The event files of one training process."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._own: dict[str, Path] = {}  # the files that this process has created, by name
        self._searched: set[str] = set()  # names of files in `_own` whose writers are known
        self._writers: weakref.WeakSet[Any] = weakref.WeakSet()
        # The attempt whose state was restored, its files' lengths, and when they were read.
        self._state: tuple[int, Sizes, float] | None = None
        self._cut: set[Path] = set()  # directories whose files have been cut back

    def read_sizes(self) -> tuple[Sizes, float]:
        """Flush the event files, and return their lengths, which belong to the current state.

        The second value is the Unix time of this call, or 0 if the lengths are unknown. Each
        capture calls this on the training thread. It also marks the attempt in the oldest writer's
        file, and cuts back the files in directories that are new to this process.
        """
        if not private.is_event_writer_known():
            return {}, 0.0
        read_s = SystemClock().wall()
        opened = _opened_by_this_process()
        if not opened.keys() <= self._searched:
            self._searched.update(opened)
            self._own.update(opened)
            self._writers = weakref.WeakSet(private.find_event_writers())
            self._cut_back()
            if len(self._own) > FILES_MAX:
                log.warning(
                    "procsv: the program writes more than %d event files; after a restart the later ones contain "
                    "repeated steps twice",
                    FILES_MAX,
                )
        writers = list(self._writers)
        if (oldest := private.oldest_writer(writers)) is not None:
            mark_once(self._runtime, oldest)
        for writer in writers:
            writer.flush()
        sizes = Sizes()
        for name, path in list(self._own.items())[:FILES_MAX]:
            try:
                sizes[name] = path.stat().st_size
            except FileNotFoundError:
                continue  # the program has removed it
        return sizes, read_s

    def restored(self, state: SlotReader | str) -> None:
        """Cut the files back to what they held at the state from which training resumes.

        `state` is the slot of this state, or the path of its checkpoint. If procsv did not save the
        checkpoint, the lengths are unknown, and the files stay as they are.
        """
        if isinstance(state, SlotReader):
            if not state.contents.logged_s:
                return
            self._state = state.info.incarnation, state.contents.logged, state.contents.logged_s
        else:
            manifest = manifest_at(Path(state + MANIFEST_SUFFIX))
            if manifest is None:
                return  # not a checkpoint of ours: how long the files were is unknown
            # If the lengths are unknown, remove only files that are certainly newer than the checkpoint.
            self._state = manifest.incarnation, manifest.logged, manifest.logged_s or manifest.time + 1
        self._cut.clear()
        self._own.update(_opened_by_this_process())
        self._cut_back()

    def _cut_back(self) -> None:
        """Cut the files of earlier attempts back to the restored state.

        This handles each directory in which this process has a file, once. It removes the files
        that the state's attempt or a later one created after the state. A state does not list all
        files that are older: a writer may have been closed, or there were more than FILES_MAX.
        """
        if self._state is None:
            return
        incarnation, sizes, read_s = self._state
        directories = {path.parent for path in self._own.values()} - self._cut
        run = self._runtime.connection
        later = read_spawns_since(run.paths.journal, run.start.task, incarnation)
        later.pop(os.getpid(), None)
        for directory in directories:
            self._cut.add(directory)
            for path in sorted(directory.iterdir()):
                if (named := EVENT_FILE.fullmatch(path.name)) is None or path.is_symlink() or path.name in self._own:
                    continue
                created_s, pid = int(named[1]), int(named[2])
                if path.name in sizes:
                    cut_back(path, sizes[path.name])
                elif _is_newer(created_s, read_s, len(sizes)) and later.get(pid, math.inf) < created_s + 1:
                    # The file has the pid of the attempt that saved the state, or of a later one, and is no older than
                    # that attempt. A kill here leaves some of these files, and the next attempt removes them.
                    path.unlink(missing_ok=True)


def _is_newer(created_s: int, read_s: float, listed: int) -> bool:
    """Whether a file that a state does not list was created after the state's files were read.

    A file's name has whole seconds. In the second of the reading, a file was probably begun after
    it, unless the state lists as many files as it can.
    """
    return created_s > int(read_s) or (created_s == int(read_s) and listed < FILES_MAX)


def cut_back(path: Path, size: int) -> None:
    """Cut a file back to what it held when the state was saved."""
    try:
        if path.stat().st_size < size:
            log.warning("procsv: %s is shorter than when the state was saved", path)
        else:
            os.truncate(path, size)
    except FileNotFoundError:
        log.warning("procsv: %s has been removed since the state was saved", path)


def _opened_by_this_process() -> dict[str, Path]:
    """Return the event files that TensorFlow's writers in this process have open, by name."""
    found = dict[str, Path]()
    with os.scandir("/proc/self/fd") as entries:
        for entry in entries:
            try:
                path = Path(entry.path).readlink()
            except OSError:
                continue  # another thread has just closed it
            named = EVENT_FILE.fullmatch(path.name)
            if named is not None and int(named[2]) == os.getpid():
                found[path.name] = path
    return found
