"""Collect the evidence about a dead process: last words, stacks, snapshots, logs and OOM kills.

Evidence that is missing or cut short counts as none.
"""

from __future__ import annotations

import contextlib
import re
import signal
from pathlib import Path

import msgspec

from procsv.base.encoding import decode_json
from procsv.base.identity import STANDBY, TRAINER, TaskId
from procsv.base.outcome import NO_STEP, LastWords
from procsv.base.run.logs import last_lines, read_end
from procsv.base.run.paths import RunPaths
from procsv.base.system.disk import ROOM_MARGIN_BYTES, has_room
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.ipc.shm.slot_header import scan_slots
from procsv.watchdog.core.events import Ended
from procsv.watchdog.core.restarts.causes import CauseKind, classify
from procsv.watchdog.host.ports import Dead

STACKS_BYTES_MAX = 2**20  # of faulthandler's output; enough for hundreds of threads
LOG_BYTES_MAX = 2**16  # from the end of a service's log, where its stacks may be
SERVICE_LINES_SHOWN = 10  # of a service's log, when procsv gives the service up
LOOK_S = 30.0  # between two readings of the kernel's counters
CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
# cgroup v2 and v1; the line `oom_kill N` is the same in both.
COUNTER_FILES = ("memory.events", "memory.oom_control")


class PostMortem:
    def __init__(self, paths: RunPaths) -> None:
        self._paths, self._kills = paths, KillCounters.of_this_process()

    def note_kills(self, now_s: float) -> None:
        """Read the kernel's counters if that is due.

        Without this, a later death would be blamed on an old kill.
        """
        self._kills.look(now_s)

    def examine(self, dead: Dead, beat: Heartbeat | None) -> Ended:
        """Return the end of a process, with all evidence about its cause."""
        task, number = dead.task, dead.incarnation
        oom = self._kills.news() if dead.exit.signal == signal.SIGKILL else ""
        if task == STANDBY:
            return Ended(task=task, incarnation=number, exit=dead.exit)
        if task.runs_program:
            words, stacks = self._last_words(task, number), _read(self._paths.stacks(task, number), STACKS_BYTES_MAX)
            memory_step, taken_step = self.snapshot_step(task), self.snapshot_step(task, number)
            has_failed = classify(dead.exit) in (CauseKind.FAILURE, CauseKind.PERMANENT)
            no_room = has_failed and not has_room(self._paths.home)
            return Ended(
                task=task,
                incarnation=number,
                exit=dead.exit,
                beat=beat,
                words=words,
                memory_step=memory_step,
                stacks=stacks,
                oom=oom,
                taken_step=taken_step,
                no_room=no_room,
            )
        log = self._paths.log(task, number)
        said = tuple(last_lines(log, SERVICE_LINES_SHOWN))
        return Ended(
            task=task,
            incarnation=number,
            exit=dead.exit,
            beat=beat,
            stacks=read_end(log, LOG_BYTES_MAX).decode(errors="replace"),
            oom=oom,
            log=str(log),
            last_lines=said,
        )

    def clear(self, dead: Dead) -> None:
        """Remove last words and stacks once the crash report is written, so that they do not pile
        up for months.
        """
        if dead.task.runs_program:
            self._paths.last_words(dead.task, dead.incarnation).unlink(missing_ok=True)
            self._paths.stacks(dead.task, dead.incarnation).unlink(missing_ok=True)

    def snapshot_step(self, task: TaskId, incarnation: int = 0) -> int:
        """Return the step of the newest whole snapshot of `task` in memory; NO_STEP if none.

        `incarnation`: only the snapshots of that attempt; 0: of any. The trainer's snapshots may be
        files that its Saver wrote (training/snapshots/backends.py). These count only if
        `incarnation` is 0. They are whole once the index exists, because it is written last.
        """
        try:
            slots = [slot for slot in scan_slots(self._paths.shm_dir) if slot.task == task]
            steps = [slot.step for slot in slots if incarnation in (0, slot.incarnation)]
            if task == TRAINER and not incarnation:
                staged = self._paths.shm_dir.glob("staged.*/*.index")
                steps += [int(found[1]) for path in staged if (found := re.search(r"-(\d+)\.index$", path.name))]
        except OSError:
            return NO_STEP
        return max(steps, default=NO_STEP)

    def snapshot_bytes(self, task: TaskId) -> int:
        """Return the bytes that a checkpoint of the largest snapshot in memory needs on disk.

        0 if there is no slot with a snapshot of `task`. Files written by its Saver do not count.
        """
        with contextlib.suppress(OSError):
            sizes = [slot.path.stat().st_size for slot in scan_slots(self._paths.shm_dir) if slot.task == task]
            return max(sizes, default=0) and max(sizes) + ROOM_MARGIN_BYTES
        return 0

    def _last_words(self, task: TaskId, incarnation: int) -> LastWords | None:
        try:
            return decode_json(self._paths.last_words(task, incarnation).read_bytes(), LastWords)
        except (OSError, msgspec.DecodeError):
            return None


def _read(path: Path, bytes_max: int) -> str:
    try:
        with path.open("rb") as file:
            return file.read(bytes_max).decode(errors="replace")
    except OSError:
        return ""


# -- the kernel's kills for lack of memory, which SIGKILL alone does not prove -----------------------------------------
class KillCounters(msgspec.Struct):
    """The kernel's counters of kills in our cgroups, in which other programs may run, too.

    A counter that has grown is evidence for the next death that is examined, and for that death
    only. The evidence expires: `look` drops it after LOOK_S to 2 * LOOK_S, depending on when the
    counters were last read. A much shorter time would be wrong, because a large process takes
    seconds to die.
    """

    counters: list[Path]
    _before: dict[Path, int] = msgspec.field(default_factory=dict)  # the readings with which the next death is compared
    _latest: dict[Path, int] = msgspec.field(default_factory=dict)  # the newest readings
    _look_s: float = 0.0  # when to read them next

    @staticmethod
    def of_this_process() -> KillCounters:
        try:
            counters = find_counters(MEMBERSHIP.read_text())
        except OSError:
            counters = []
        made = KillCounters(counters)
        made.news()
        return made

    def _read(self) -> dict[Path, int]:
        return {counter: kills for counter in self.counters if (kills := read_kills(counter)) is not None}

    def look(self, now_s: float) -> None:
        """Read the counters if that is due. Growth up to the previous reading no longer counts."""
        if now_s >= self._look_s:
            self._before, self._latest, self._look_s = self._latest, self._read(), now_s + LOOK_S

    def news(self) -> str:
        """Describe the growth of a counter since the last call, for people; "" if none has grown.

        Growth that has expired does not count.
        """
        before, now = self._before, self._read()
        self._before = self._latest = now
        for counter, kills in now.items():
            if kills > before.get(counter, kills):
                return f"killed by the kernel (oom_kill {before[counter]} -> {kills} in {counter})"
        return ""


def find_counters(membership: str, root: Path = CGROUPS) -> list[Path]:
    """Return the files that count kills in our cgroup and its parents, ours first. `membership`:
    the text of /proc/self/cgroup.
    """
    found = []
    for line in membership.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        mounts = [root / "memory"] if controllers else [root, root / "unified"]
        for mount in mounts:
            inside = Path(path.lstrip("/"))
            for place in (inside, *inside.parents):
                found += [mount / place / name for name in COUNTER_FILES]
    return [file for file in dict.fromkeys(found) if file.is_file()]


def read_kills(counter: Path) -> int | None:
    """Return how many processes of the counter's cgroup the kernel has killed for lack of memory.

    None if that is unknown.
    """
    try:
        text = counter.read_text()
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None
