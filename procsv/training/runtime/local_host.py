"""A trainer that runs its own services: what the watchdog does for them, without a watchdog.

Used by a Supervisor outside `procsv launch`.  Takes the run's lock, starts the checkpoint and the summary service as
child processes, starts them again when they die, keeps journal and run.json, ends them with the session.
It cannot restart the trainer: when that is killed, the services save what is in memory and end by themselves.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import select
import signal
import sys
import threading
from pathlib import Path
from typing import cast

import msgspec

from procsv.base.clock import Clock
from procsv.base.errors import LogdirLocked, PeerError
from procsv.base.identity import CHECKPOINT, SUMMARY, TRAINER, TaskId
from procsv.base.locks import FileLock
from procsv.base.processes import Child, identify, spawn
from procsv.base.run.cleanup import remove_dirs, remove_run_files, remove_shm_files
from procsv.base.run.journal import Journal
from procsv.base.run.log_tail import last_lines
from procsv.base.run.paths import RunPaths, check_socket_paths, find_paths, make_private_dir
from procsv.base.run.run_file import RunFile, find_run_in, host_is_alive, read_run, write_run
from procsv.base.service_table import SERVICES
from procsv.base.system_clock import SystemClock
from procsv.base.text import gist, is_remote
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.messaging.messages import (
    Durable,
    Finish,
    FirstStepDone,
    FlushDone,
    Rejected,
    SavedKey,
    SaveFailed,
    Unwritable,
)
from procsv.ipc.messaging.start import Start
from procsv.training.runtime.link import Link

FINISH_S_MAX = {CHECKPOINT: 300.0, SUMMARY: 10.0}  # what a service may take to save what is unsaved
EXIT_S_MAX = 5.0  # from its last word to its exit; then it is killed
PREDECESSOR_S_MAX = 60.0  # what the services of a killed trainer may take to save and leave
RESPAWN_S = 1.0  # until a service that the system would not start is tried again
LOG_LINES_SHOWN = 10  # of a service that has died for good
DEATHS_MAX, DEATHS_PERIOD_S = 5, 300.0  # a service that dies more often before it is of use is not started again


Fields = dict[str, str | int | float | bool | None]


class LocalHost:
    """The run of one Supervisor without a watchdog.  `begin` and `end` may be called in turns, again and again."""

    def __init__(self, logdir: str, may_save: bool) -> None:
        """`may_save`: it owns the checkpoints of `logdir`; without a Saver it shares the logdir with whoever does."""
        found = find_paths(logdir)
        self._logdir = logdir.rstrip("/") if is_remote(logdir) else str(found.logdir)
        self.may_save = may_save
        if may_save:
            self.paths = found
            self.roles: tuple[TaskId, ...] = tuple(SERVICES)
        else:
            mark = f".{os.getpid()}.{secrets.token_hex(2)}"
            run_dir, shm_dir = Path(f"{found.run_dir}{mark}"), Path(f"{found.shm_dir}{mark}")
            self.paths = RunPaths(found.logdir, run_dir, shm_dir)
            self.roles = (SUMMARY,)
        self._clock: Clock = SystemClock()
        self._lock = FileLock(self.paths.run_lock)
        self._children: dict[TaskId, Child] = {}
        self._incarnations: dict[TaskId, int] = {}
        self._deaths: dict[TaskId, list[float]] = {}
        self._link: Link | None = None
        self._journal: Journal | None = None
        self._file: RunFile | None = None
        self._start: Start | None = None
        self._lifeline = (-1, -1)
        self._ending = self._is_over = False
        self._missing: set[TaskId] = set()  # roles that the system would not start just now
        self._settled: set[TaskId] = set()  # roles that have answered Finish: they end by themselves
        self._trouble = ""  # why the journal cannot be written
        self._begun_s = 0.0
        self._journaled: dict[bool, SavedKey] = {}  # the last in the journal of the program's own saves, and of ours
        self._failed = ""  # the gist of what keeps saves from succeeding
        self._wake_fd = -1
        self._thread: threading.Thread | None = None

    def next_incarnation(self) -> int:
        before = read_run(self.paths.run_json)
        return (before.incarnation if before is not None else 0) + 1

    # -- beginning -------------------------------------------------------------------------------------------
    def begin(self) -> Start:
        """Locks the logdir and starts the services.  LogdirLocked if another run has it."""
        self.paths.logdir.mkdir(parents=True, exist_ok=True)
        check_socket_paths(self.paths)
        make_private_dir(self.paths.run_dir)
        self._take_lock()
        make_private_dir(self.paths.shm_dir)
        remove_run_files(self.paths, keep=frozenset(self._locks()))
        self._begun_s = self._clock.monotonic()
        self._ending = self._is_over = False
        self._missing, self._settled = set(), set()
        run, paths = secrets.token_hex(8), self.paths
        self._start = Start(
            task=TRAINER,
            run=run,
            incarnation=self.next_incarnation(),
            logdir=self._logdir,
            run_dir=str(paths.run_dir),
            shm_dir=str(paths.shm_dir),
            has_watchdog=False,
            target=os.path.basename(sys.argv[0]) or "python",  # noqa: PTH119  a name, not a path
        )
        self._lifeline = os.pipe()
        if self.may_save:
            self._journal = Journal(paths.journal, self._clock)
            self._write_run("running")
            self.note("run_started", {"target": self._start.target, "pid": os.getpid()})
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        for task in self.roles:
            self._incarnations[task] = 0
            self._spawn(task)
        self._thread = threading.Thread(target=self._watch, name="procsv-host", daemon=True)
        self._thread.start()
        atexit.register(self.end)
        return self._start

    def _take_lock(self) -> None:
        what = f"python {' '.join(sys.argv)}"
        before = find_run_in(self.paths)
        is_taken = not self._lock.try_acquire(what, self._clock.wall())
        elsewhere = before is not None and before.host.pid != os.getpid() and host_is_alive(before)
        if not is_taken and self.may_save and not elsewhere:
            self.paths.home.mkdir(parents=True, exist_ok=True)
            elsewhere = not self._lock.also_lock(self.paths.home)
        if is_taken or (self.may_save and elsewhere):
            self._lock.let_go()
            holder = self._lock.holder()
            pid = holder.pid if is_taken and holder else before.pid if before is not None else "?"
            raise LogdirLocked(
                f"{self.paths.logdir} is in use by process {pid}: one trainer at a time writes to a logdir.  "
                f"`procsv status {self.paths.logdir}` says what it does; `procsv stop` ends it; or use another logdir"
            )

    def _locks(self) -> list[Path]:
        return [self.paths.run_lock, *(self.paths.service_lock(task) for task in self.roles)]

    def _spawn(self, task: TaskId) -> None:
        assert self._start is not None
        self._incarnations[task] += 1
        start = msgspec.structs.replace(
            self._start, task=task, incarnation=self._incarnations[task], lifeline_fd=self._lifeline[0], target=""
        )
        log = self.paths.log(task, start.incarnation) if self.may_save else Path(os.devnull)
        child = spawn(start.argv(), env=start.environment(os.environ), log=log, pass_fds=(self._lifeline[0],))
        self._children[task] = child
        self.note("spawned" if start.incarnation == 1 else "service_restarted", {"pid": child.pid}, task=task)

    def attach(self, link: Link) -> None:
        """Hears what the journal is to say.  Before the link talks."""
        self._link = link
        link.on(Durable, self._on_durable)
        link.on(SaveFailed, self._on_failed)
        link.on(Unwritable, self._on_unwritable)
        link.on(Rejected, self._on_rejected)
        link.on(FlushDone, lambda received: self._settled.add(received.task))

    # -- while it runs ---------------------------------------------------------------------------------------
    def _watch(self) -> None:
        """The host's thread: starts a service again that has died, to the end of what it was asked last."""
        while not self._is_over:
            poller = select.poll()
            poller.register(self._wake_fd, select.POLLIN)
            for task in set(self._children) - self._settled:
                poller.register(self._children[task].pidfd, select.POLLIN)
            poller.poll(RESPAWN_S * 1000 if self._missing else None)
            if self._is_over:
                return
            for task in sorted(self._missing):
                self._spawn_if_possible(task)
            for task in set(self._children) - self._settled:
                if self._children[task].has_ended():
                    self._replace(task, self._children.pop(task))

    def _replace(self, task: TaskId, child: Child) -> None:
        ended = child.reap()
        now_s = self._clock.monotonic()
        recent = [s for s in self._deaths.get(task, []) if now_s - s < DEATHS_PERIOD_S]
        self._deaths[task] = recent if ended.signal == signal.SIGKILL else [*recent, now_s]
        self.note("exited", {"code": ended.code, "signal": ended.signal_name}, task=task)
        if len(self._deaths[task]) > DEATHS_MAX:
            self._lose(task, str(ended))
            return
        self._spawn_if_possible(task)

    def _spawn_if_possible(self, task: TaskId) -> None:
        """No process, descriptor or room for a log just now: it is tried again."""
        try:
            self._spawn(task)
        except OSError as error:
            if task not in self._missing:
                print(f"procsv: cannot start the {task} service: {error}; trying again", file=sys.stderr)
            self._missing.add(task)
        else:
            self._missing.discard(task)

    def _lose(self, task: TaskId, ended: str) -> None:
        """A service that ends again and again is not started any more, and whoever waits for it is told."""
        log = self.paths.log(task, self._incarnations[task])
        why = f"the {task} service ended {len(self._deaths[task])} times within {DEATHS_PERIOD_S:.0f} s, at last with {ended}"
        said = "".join(f"\n  {line}" for line in last_lines(log, LOG_LINES_SHOWN)) if self.may_save else ""
        end = f"; its log {log} ends with:{said}" if said else ""
        print(f"procsv: {why}; it is not started again{end}", file=sys.stderr)
        if self._link is not None:
            self._link.lose(task, why)

    def _on_durable(self, received: Received) -> None:
        body = cast(Durable, received.body)
        is_ours = body.sequence > 0
        if body.key == self._journaled.get(is_ours):
            return  # said to all, and once more to the one who asked
        self._journaled[is_ours] = body.key
        fields: Fields = {"step": body.step, "path": body.path, "reason": body.reason}
        self.note("checkpoint_durable", {**fields, "bytes": body.bytes, "seconds": body.seconds})
        if is_ours:
            self._failed = ""
        is_latest = body.path in body.all_paths[-1:]
        step = body.step if is_latest else None
        self._write_run("running", durable_step=step, save_error="" if is_ours else None)

    def _on_failed(self, received: Received) -> None:
        body = cast(SaveFailed, received.body)
        self._failing(body.step, body.error)

    def _on_unwritable(self, received: Received) -> None:
        body = cast(Unwritable, received.body)
        self._failing(self._file.durable_step if self._file is not None else -1, body.error)

    def _failing(self, step: int, error: str) -> None:
        """Saving fails, or (`error` "") may succeed again: journaled once for each change, and in run.json."""
        if error and gist(error) != self._failed:
            self.note("checkpoint_failed", {"step": step, "error": error})
        self._failed = gist(error)
        self._write_run("running", save_error=error)

    def _on_rejected(self, received: Received) -> None:
        body = cast(Rejected, received.body)
        self.note("checkpoint_rejected", {"path": body.path, "why": body.why})

    def note(self, event: str, fields: Fields, task: TaskId = TRAINER) -> None:
        """A line in the journal."""
        if self._journal is not None and self._start is not None:
            incarnation = self._incarnations.get(task, self._start.incarnation)
            try:
                self._journal.append(event, task, incarnation, **fields)
            except OSError as error:  # a full disk, say: the thread that wanted to tell of it has more to do
                if not self._trouble:
                    print(f"procsv: cannot write {self.paths.journal}: {error}; training goes on", file=sys.stderr)
                self._trouble = str(error)
            else:
                self._trouble = ""

    def recovered(self, body: FirstStepDone) -> None:
        seconds = round(body.ended_s - self._begun_s, 6)
        source: Fields = {"step": body.restored_step, "source": body.source, "from": body.origin}
        self.note("ready", {"step": body.step})
        self.note("recovered", {**source, "seconds": seconds})

    def _write_run(self, state: str, durable_step: int | None = None, save_error: str | None = None) -> None:
        if not self.may_save or self._start is None:
            return
        before = self._file
        if before is None or before.run != self._start.run:
            me, start = identify(os.getpid()), self._start
            before = RunFile(
                run=start.run,
                target=start.target,
                args=tuple(sys.argv[1:]),
                logdir=start.logdir,
                run_dir=start.run_dir,
                shm_dir=start.shm_dir,
                pid=me.pid,
                started=me.started,
                boot=me.boot,
                state=state,
                incarnation=start.incarnation,
                started_at=self._clock.wall(),
            )
        ended_at = self._clock.wall() if state != "running" else None
        step = before.durable_step if durable_step is None else durable_step
        error = before.save_error if save_error is None else save_error or None
        self._file = msgspec.structs.replace(
            before, state=state, step=max(before.step, step), durable_step=step, save_error=error, ended_at=ended_at
        )
        with contextlib.suppress(
            OSError
        ):  # a full disk is reported by whoever saves; run.json is not worth the training
            write_run(self.paths.run_json, self._file, durable=ended_at is not None)

    # -- the end ---------------------------------------------------------------------------------------------
    def end(self) -> None:
        """Has the services save what is unsaved and ends them; leaves nothing in the run's directories."""
        if self._start is None or self._ending:
            return
        self._ending = True
        atexit.unregister(self.end)
        settled = {task: self._finish(task) for task in self.roles}
        self._is_over = True
        os.eventfd_write(self._wake_fd, 1)
        if self._thread is not None:
            self._thread.join()
        has_talked = self._link is not None and self._link.is_talking
        try:
            if self._link is not None:
                self._link.end(1.0)
        finally:
            self._leave(settled.get(CHECKPOINT), has_talked)

    def _leave(self, settled: FlushDone | None, has_talked: bool) -> None:
        """Nothing of the run stays but what is in the logdir, and what nobody has said to be there."""
        for child in self._children.values():
            self._see_out(child)
        step, error = (settled.step, settled.error) if settled is not None else (-1, "")
        if settled is None and self.may_save and has_talked:
            error = "the checkpoint service did not answer"
        if error:
            print(f"procsv: the newest state could not be saved: {error}", file=sys.stderr)
        self.note("stopped", {"step": step})
        self._write_run("failed" if error else "done", step if step >= 0 else None)
        self._clean_up(keep_memory=self.may_save and (settled is None or bool(error)))

    def _finish(self, task: TaskId) -> FlushDone | None:
        """Asks a service to finish; None if it is not there to answer.  One that dies meanwhile is asked again, by the link."""
        if self._link is None or not self._link.is_talking or self._link.why_lost(task):
            return None
        try:
            return cast(FlushDone, self._link.ask(task, Finish(), FINISH_S_MAX[task]).body)
        except TimeoutError:
            print(f"procsv: the {task} service did not finish in {FINISH_S_MAX[task]:.0f} s", file=sys.stderr)
        except PeerError:
            pass  # it dies again and again, which was said
        return None

    def _see_out(self, child: Child) -> None:
        poller = select.poll()
        poller.register(child.pidfd, select.POLLIN)
        if not poller.poll(EXIT_S_MAX * 1000):
            child.signal_tree(signal.SIGKILL)
            poller.poll(EXIT_S_MAX * 1000)
        child.reap()

    def _clean_up(self, keep_memory: bool) -> None:
        for fd in (*self._lifeline, self._wake_fd):
            os.close(fd)
        self._lifeline, self._wake_fd = (-1, -1), -1
        self._children, self._link, self._thread = {}, None, None
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        if not keep_memory:
            remove_shm_files(self.paths)
        remove_run_files(self.paths, keep=frozenset({self.paths.run_lock}))
        self._lock.release()
        remove_dirs(self.paths)
        self._start = None
