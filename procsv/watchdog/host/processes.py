"""Run the processes of a run: start them, signal them, end whole trees, and measure their usage.

Used by local_host.py and event_loop.py, only on the main thread: the children of another thread
would get their parent-death signal when that thread ends. Never touches a process that existed
before the run, and never signals a bare pid.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import psutil

from procsv.base.clock import Clock
from procsv.base.cluster import GRPC_OPTIONS, task_environment
from procsv.base.identity import STANDBY, TRAINER, WATCHDOG, TaskId
from procsv.base.run.logs import prune_logs
from procsv.base.system.failpoints import declare, failpoint
from procsv.base.system.locks import DirectoryLock, FileLock, is_lock_free
from procsv.base.system.process_state import has_open, process_state, thread_states
from procsv.base.system.processes import TRACKER_S_MAX, Child, is_tracker, spawn
from procsv.base.system.tree_mark import add_mark, is_of_run
from procsv.ipc.messaging.fd_channel import FdChannel
from procsv.ipc.messaging.fd_messages import STANDBY_DECODER, StandbyWord
from procsv.ipc.messaging.start import OBSERVER, TRAINING, Start, module_of
from procsv.ipc.messaging.zmq_transport import Waiter
from procsv.watchdog.core.events import AT_DISK, STOPPED
from procsv.watchdog.host.gpu import Gpus
from procsv.watchdog.host.observed_program import ObservedProgram
from procsv.watchdog.host.ports import Dead
from procsv.watchdog.host.warm_services import WarmServices

declare("watchdog.before_exec", "watchdog.after_exec")

PR_SET_CHILD_SUBREAPER = 36
# A child of the program may have used procsv by itself, and so have an observer. This is how long the observer may take
# to save after the program's death.
OBSERVER_S_MAX = 10.0
FINISHING_MAX = 1000  # how many finishing processes are remembered; the oldest go first
# A process with one of these words in its command is a helper of multiprocessing, or our observer.
HELPERS = "resource_tracker", "forkserver", OBSERVER
SHOWN_CHARS = 80  # of a command line

Argv = Callable[[Start], list[str]]


class WriterLockHeld(OSError):
    """Part of an older trainer's tree is still alive."""


class RunningChild(msgspec.Struct):
    task: TaskId
    incarnation: int
    child: Child | ObservedProgram
    started_s: float  # monotonic
    usage: psutil.Process | None  # measures what it uses; None if it was already gone
    line: FdChannel[StandbyWord] | None = None  # the channel to a standby


class Processes(msgspec.Struct):
    """The children of this watchdog, by task."""

    start: Start  # the watchdog's own; the Start of each process is a changed copy of it
    clock: Clock
    argv: Argv
    environment: Mapping[str, str]
    waiter: Waiter
    heirs: DirectoryLock  # the lock on the logdir; every process that writes there has inherited it from us
    observed: ObservedProgram | None = None  # the trainer, if procsv did not start it
    warm: WarmServices | None = None
    helpers: Callable[[], set[int]] = set  # returns the pids of our children that do not belong to the run
    running: dict[TaskId, RunningChild] = msgspec.field(default_factory=dict)
    _gpus: Gpus = msgspec.field(default_factory=Gpus)
    _usage: psutil.Process = msgspec.field(default_factory=psutil.Process)  # our own
    _started_s: float = 0.0
    _home: Path = Path()  # the working directory of this launch
    # For each task, a descriptor of the writer's lock that its newest tree holds. We only check the lock through it:
    # the descriptor itself does not hold the lock.
    _trees: dict[TaskId, int] = msgspec.field(default_factory=dict)
    # When each stray that may finish (`_is_finishing`) was first seen, by pid and start time.
    _finishing: dict[tuple[int, float], float] = msgspec.field(default_factory=dict)
    _lifeline: tuple[int, int] = (-1, -1)  # the read end, which the children inherit, and the write end
    _innocent: frozenset[tuple[int, float]] = frozenset()  # children that we had before the run

    def __post_init__(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if we inherited it as ignored, every exit would read as 0
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._lifeline = os.pipe2(os.O_CLOEXEC) if self.warm is None else self.warm.lifeline
        self._started_s = self.clock.monotonic()
        with contextlib.suppress(FileNotFoundError):  # the working directory was deleted
            self._home = Path.cwd()
        self._usage.cpu_percent()  # the first reading is the base of the next
        # Do not end processes that the shell started before it became us by exec.
        self._innocent = frozenset(_identity(child) for child in psutil.Process().children())

    # -- start ---------------------------------------------------------------------------------------------
    def spawn(self, task: TaskId, incarnation: int, standby: str) -> int:
        """Start the process, and return its pid.

        OSError if the system refuses, or if an older tree of the task still holds the writer's
        lock. `standby`: warm or hot, if the process is a standby; otherwise "".
        """
        if task == TRAINER and self.observed is not None:
            self.observed.opened(incarnation, self.heirs.fd)
            return self.list_child(task, incarnation, self.observed)
        self._return_home()
        paths = self.start.paths
        log = paths.log(task, incarnation)
        prune_logs(log)
        start = self._start(task, incarnation)
        fds: list[int] = [self._lifeline[0]]
        lock: FileLock | None = None
        if task != STANDBY:  # a standby gets this lock when it becomes a task, and writes nothing before
            fds.append(self.heirs.fd)
        line, end = FdChannel.pair(STANDBY_DECODER) if task == STANDBY else (None, None)
        if end is not None:
            settings = msgspec.structs.replace(start.settings, standby=standby)
            is_awaited = not any(running.task.runs_program for running in self.running.values())
            start = msgspec.structs.replace(start, standby_fd=end.fd, settings=settings, is_awaited=is_awaited)
            fds.append(end.fd)
        environment = self._environment(start)
        if task.runs_program:
            lock = self.take_writer_lock(task, incarnation)
            fds.append(lock.fd)
        try:
            failpoint("watchdog.before_exec")
            warm = self.warm.take_process(str(task), start.text(), self.heirs.fd) if self.warm is not None else None
            child = Child(warm) if warm is not None else spawn(self.argv(start), env=environment, log=log, pass_fds=fds)
        except OSError:
            if line is not None:
                line.close()
            raise
        finally:
            if lock is not None:
                lock.release_lock()  # from now on only the task's tree holds it
            if end is not None:
                end.close()
        failpoint("watchdog.after_exec")  # if we are killed here, the child finds its lifeline closed, and ends
        return self.list_child(task, incarnation, child, line)

    def _return_home(self) -> None:
        """Enter the working directory again if it was deleted and remade, as by a deployment."""
        try:
            Path.cwd()
        except FileNotFoundError:
            with contextlib.suppress(OSError):  # it was not made again
                os.chdir(self._home)

    def _environment(self, start: Start) -> dict[str, str]:
        environment, task = start.environment(self.environment), start.task
        if module_of(task) == TRAINING:
            environment = add_mark(environment, start.paths.id)
            environment |= {"PROCSV_LOGDIR": self.start.logdir, "PROCSV_ROLE": str(task)}
        if task == STANDBY and TRAINER in self.running:
            environment["PROCSV_INCARNATION"] = str(self.running[TRAINER].incarnation + 1)  # of the next attempt
        if task.runs_program:
            environment["PROCSV_INCARNATION"] = str(start.incarnation)
            if start.cluster:
                environment |= task_environment(start.cluster, task, environment.get(GRPC_OPTIONS, ""))
        return environment

    def use_logdir(self, logdir: str) -> None:
        self.start = self.start.with_logdir(logdir)

    def take_writer_lock(self, task: TaskId, incarnation: int) -> FileLock:
        """Take the task's writer lock.

        Raise WriterLockHeld while part of the task's older tree has it, even if the lock's file was
        removed.
        """
        lock = FileLock(self.start.paths.writer_lock(task))
        if not self._writer_lock_is_free(task) or not lock.try_acquire(f"{task} {incarnation}", self.clock.wall()):
            raise WriterLockHeld("an older trainer's processes still hold the logdir")
        try:
            look = os.open(f"/proc/self/fd/{lock.fd}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # no descriptors left
            lock.release_lock()
            raise
        self._forget_tree(task)
        self._trees[task] = look
        return lock

    def _forget_tree(self, task: TaskId) -> None:
        if (fd := self._trees.pop(task, -1)) >= 0:
            os.close(fd)

    def list_child(
        self, task: TaskId, incarnation: int, child: Child | ObservedProgram, line: FdChannel[StandbyWord] | None = None
    ) -> int:
        """List a process as this attempt of the task, watch it from now on, and return its pid."""
        usage = None
        with contextlib.suppress(psutil.Error, OSError):
            usage = psutil.Process(child.pid)
            usage.cpu_percent()  # the first reading is the base of the next
        self.running[task] = RunningChild(task, incarnation, child, self.clock.monotonic(), usage, line)
        self.waiter.register(child.pidfd)
        if line is not None:
            self.waiter.register(line.fd)
        return child.pid

    def _start(self, task: TaskId, incarnation: int) -> Start:
        changes = {"task": task, "incarnation": incarnation, "lifeline_fd": self._lifeline[0]}
        if module_of(task) != TRAINING:
            changes |= {"target": "", "args": ()}  # a service serves any program
        return msgspec.structs.replace(self.start, **changes)

    # -- end -----------------------------------------------------------------------------------------------
    def find(self, task: TaskId, incarnation: int) -> RunningChild | None:
        running = self.running.get(task)
        return running if running is not None and running.incarnation == incarnation else None

    def signal(self, task: TaskId, incarnation: int, number: int) -> None:
        if (running := self.find(task, incarnation)) is not None:
            running.child.signal(number)

    def kill_tree(self, task: TaskId, incarnation: int) -> None:
        running = self.find(task, incarnation)
        if running is None:
            return
        if running.line is not None and task != STANDBY:
            # This is a standby that was told to become the task. It may already have forked the task and sent a report
            # that we have not read. So kill only the standby, not the fork. If there is a report, the fork is the task.
            # If there is none, the fork becomes a stray once the standby is dead, and `clear_tree` kills it.
            running.child.signal(signal.SIGKILL)
        else:
            running.child.signal_tree(signal.SIGKILL)

    def ended(self) -> list[Dead]:
        dead = []
        for running in [running for running in self.running.values() if running.child.has_ended()]:
            del self.running[running.task]
            self.waiter.remove(running.child.pidfd)
            self.end_talk(running)
            if running.task.runs_program and running.child is not self.observed:  # an observed program may live on
                self._gpus.expect_to_leave(running.child.pid, self.clock.monotonic())
            exit = running.child.reap(spares_rest=running.task.runs_program)
            dead.append(Dead(running.task, running.incarnation, running.child.pid, exit))
        return dead

    def end_talk(self, running: RunningChild) -> None:
        """End the conversation with a standby, which has become the trainer or is dead."""
        if running.line is not None:
            self.waiter.remove(running.line.fd)
            running.line.close()
            running.line = None

    def clear_tree(self, task: TaskId) -> bool:
        """Kill what a dead task has left.

        Return True if no process of the task is left, its writer's lock is free, and the GPU no
        longer counts its memory as used.
        """
        strays = self._strays(task)
        for stray in strays:
            if self._awaits_fork() or self._is_finishing(stray):
                continue
            with contextlib.suppress(psutil.Error, OSError):
                if _shows_nothing(stray.pid):
                    continue
                for process in (*stray.children(recursive=True), stray):
                    with contextlib.suppress(psutil.Error, OSError):
                        process.kill()
        self.reap_strays()
        return not strays and self._writer_lock_is_free(task) and self._gpus.wait_is_over(self.clock.monotonic())

    def _awaits_fork(self) -> bool:
        """Whether a standby is becoming a task. If so, an unknown child may be the fork that the
        standby is about to report.
        """
        return any(running.line is not None and running.task != STANDBY for running in self.running.values())

    def name_strays(self, task: TaskId) -> list[str]:
        names = []
        for stray in self._strays(task):
            with contextlib.suppress(psutil.Error, OSError):
                command = shlex.join(stray.cmdline())  # empty for a process that is about to disappear
                if command and not any(helper in command for helper in HELPERS):
                    names.append(f"process {stray.pid} ({command[:SHOWN_CHARS]})")
        return names

    def clear_last_tree(self, task: TaskId) -> None:
        """Kill what a dead task has left at the end of the run, when nothing may remain.

        First wait up to OBSERVER_S_MAX for observers, which save.
        """
        self.clear_tree(task)
        observers = [stray for stray in self._strays(task) if _is_observer(stray)]
        psutil.wait_procs(observers, timeout=OBSERVER_S_MAX)
        self.clear_tree(task)

    def _is_finishing(self, stray: psutil.Process) -> bool:
        """Whether this is a resource tracker or an observer that is finishing after the program's
        death, and still has time.
        """
        limit_s = TRACKER_S_MAX if is_tracker(stray.pid) else OBSERVER_S_MAX if _is_observer(stray) else 0.0
        if not limit_s:
            return False
        now_s = self.clock.monotonic()
        return now_s < first_seen(self._finishing, _identity(stray), now_s) + limit_s

    def _writer_lock_is_free(self, task: TaskId) -> bool:
        """Whether the writer's lock is free. False while that is unknown (no descriptors left)."""
        try:
            if (fd := self._trees.get(task, -1)) >= 0:
                return is_lock_free(fd)
            return not FileLock(self.start.paths.writer_lock(task)).is_held()
        except OSError:
            return False

    def _strays(self, task: TaskId) -> list[psutil.Process]:
        """Return the orphans of the task's tree, which have become our children, and children that
        cannot be identified yet.
        """
        others = {
            b"PROCSV_ROLE=" + str(other).encode() for other in self.running if other.runs_program and other != task
        }
        started = {running.child.pid for running in self.running.values()} | self.helpers()
        lock = self.start.paths.writer_lock(task)
        found = []
        with contextlib.suppress(psutil.Error, OSError):  # for example, no descriptors left: checked again soon
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error, OSError):
                    if child.pid in started or _identity(child) in self._innocent:
                        continue
                    environ = Path(f"/proc/{child.pid}/environ").read_bytes()
                    if not others.isdisjoint(environ.split(b"\0")):
                        continue
                    held, is_init = has_open(child.pid, lock), os.getpid() == 1
                    is_ours = is_of_run(environ, self.start.paths.id, holds_lock=held, is_init=is_init)
                    if is_ours or _shows_nothing(child.pid):
                        found.append(child)
        return found

    def reap_strays(self) -> None:
        """Reap dead children that we did not start.

        A child that we did start is reaped by the code that started it. If waitid returns such a
        child, stop: waitid would return it again. Reap the rest at a later call.
        """
        if self._awaits_fork():
            return
        ours = {running.child.pid for running in self.running.values()} | self.helpers()
        with contextlib.suppress(ChildProcessError):
            while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if dead.si_pid in ours:
                    return
                os.waitpid(dead.si_pid, os.WNOHANG)

    def is_stopped(self, task: TaskId) -> bool:
        """Whether the task's process is frozen, by a signal (SIGSTOP, SIGTSTP) or by a debugger."""
        return self._state(task) in ("T", "t")

    def is_traced(self, task: TaskId) -> bool:
        """Whether a debugger holds the task's process, because somebody is looking at it."""
        return self._state(task) == "t"

    def _state(self, task: TaskId) -> str:
        running = self.running.get(task)
        with contextlib.suppress(psutil.Error, OSError):
            return process_state(running.child.pid) if running is not None else ""
        return ""

    def doing(self, task: TaskId) -> str:
        """Return what the threads of the task's process are doing.

        STOPPED if a signal or a debugger has stopped one of them; otherwise AT_DISK if one of them
        waits for a disk; otherwise "".
        """
        running = self.running.get(task)
        with contextlib.suppress(psutil.Error, OSError):
            states = thread_states(running.child.pid) if running is not None else set()
            return STOPPED if states & {"T", "t"} else AT_DISK if "D" in states else ""
        return ""

    def usage(self, task: TaskId) -> dict[str, float | int]:
        """Return uptime in seconds, resident bytes, and percent of a core since the last call."""
        started_s, process = self._started_s, self._usage if task == WATCHDOG else None
        if (running := self.running.get(task)) is not None:
            started_s, process = running.started_s, running.usage
        elif task != WATCHDOG:
            return {"uptime": 0.0, "rss": 0, "cpu": 0.0}
        return {"uptime": round(self.clock.monotonic() - started_s, 1), **_measure(process)}

    def cut_lifeline(self) -> None:
        """Close the write end of the lifeline, as our death would.

        The running processes then end by themselves.
        """
        os.close(self._lifeline[1])
        self._lifeline = self._lifeline[0], -1

    def close(self) -> None:
        for fd in (*self._lifeline, *self._trees.values()):
            if fd >= 0:
                os.close(fd)


def first_seen(seen: dict[tuple[int, float], float], one: tuple[int, float], now_s: float) -> float:
    """Return when a process was first seen, and remember a new process.

    If `seen` has too many processes, forget the oldest.
    """
    seen_s = seen.setdefault(one, now_s)
    if len(seen) > FINISHING_MAX:
        del seen[next(iter(seen))]
    return seen_s


def _measure(process: psutil.Process | None) -> dict[str, float | int]:
    try:
        if process is not None:
            return {"rss": process.memory_info().rss, "cpu": process.cpu_percent()}
    except (psutil.Error, OSError):
        pass
    return {"rss": 0, "cpu": 0.0}


def _shows_nothing(pid: int) -> bool:
    """Whether a process shows neither environment nor command: it is a zombie, or in exec."""
    return not any(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline"))


def _is_observer(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return OBSERVER in process.cmdline()
    return False


def _identity(process: psutil.Process) -> tuple[int, float]:
    return process.pid, process.create_time()
