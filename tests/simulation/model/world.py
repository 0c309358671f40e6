"""One simulated machine: clock, network, disk, shared memory, processes and history.

run.py makes it from a seed; faults.py disturbs it; invariants.py reads its history. All chance
comes from the seed, so a seed replays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec

from procsv.base.identity import COMMAND_LINE, TaskId
from procsv.base.outcome import Exit
from procsv.base.run.run_file import RunFile
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.ipc.messaging.endpoint import Address, Received
from procsv.ipc.messaging.launch_settings import HANG_LIMITS_S, LaunchSettings, Range
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.watchdog_messages import Status, StatusRequest
from procsv.watchdog.core.settings import Settings
from tests.simulation.model import history
from tests.simulation.model.clock import SimClock
from tests.simulation.model.disk import SimDisk
from tests.simulation.model.group.in_step import Rings
from tests.simulation.model.group.served import Servers
from tests.simulation.model.memory import SimMemory
from tests.simulation.model.network import SimClient, SimNetwork
from tests.simulation.model.processes import Process
from tests.simulation.model.program import Program, ProgramError
from tests.simulation.model.program_process import ProgramProcess
from tests.simulation.model.services import ServiceProcess, SimEnvironment
from tests.simulation.model.stream_store import EventDisk
from tests.simulation.model.trace import show
from tests.simulation.model.watchdog import Watchdog

STATUS_S_MAX = 1.0
RUN_DIR = Path("/run")
HANG_S = 20.0  # the limit without progress in the model's own work
HANG_S_WAITING = 250.0  # the limit while waiting for services, which may retry a save after a minute, twice
_LIMITS_S = dict.fromkeys(HANG_LIMITS_S, HANG_S_WAITING) | dict.fromkeys(("import", "compile", "service"), HANG_S)
LAUNCH = LaunchSettings(backoff=Range(1.0, 8.0), hang_timeout_s=HANG_S, hang_limits_s=_LIMITS_S)


class Violation(AssertionError):
    """An invariant does not hold. The text names it."""


@dataclass(slots=True)
class Stray:
    """A grandchild that has survived its task and holds the writer's lock."""

    task: TaskId
    until_s: float  # ends by itself then
    dies_in_s: float  # after it was killed
    killed_s: float | None = None


class World:
    def __init__(self, seed: int, program: Program, settings: Settings | None = None) -> None:
        self.seed, self.program = seed, program
        self.rng = Random(seed)
        self.settings = settings or Settings(
            msgspec.structs.replace(LAUNCH, standby="warm" if program.standby else "off")
        )
        self.chief = self.settings.tasks[0]
        self.clock = SimClock()
        self.network = SimNetwork(self.clock, Random(seed + 1))
        self.disk = SimDisk(Random(seed + 2))
        self.events = EventDisk(self.disk, on_append=lambda file: self.note(history.Appended(file)))
        self.memory = SimMemory(Path("/shm"))
        self.processes: dict[int, Process] = {}
        self.servers, self.rings = Servers(self.settings.tasks), Rings(self.settings.tasks)
        self.broken: dict[TaskId, ProgramError] = {}  # errors that end a task at every start
        self.strays: list[Stray] = []
        self.run_json: RunFile | None = None
        self.last_incarnation = 0  # the last attempt of any trainer in this logdir
        self.last_run = ""
        self.kept_plan: CheckpointPlan | None = None  # in the run directory
        self.calm_from_s = 0.0  # when the last disturbance is over
        self.cannot_spawn_until_s = 0.0
        self.slow_disk = 1.0
        self.disk_bad_until_s = 0.0
        self.watchdog: Watchdog | None = None
        self.watchers: list[Callable[[history.Fact], None]] = []
        self.facts: list[tuple[float, history.Fact]] = []
        self.trace: Callable[[str], None] | None = None
        self._pids = 1000

    # -- history ---------------------------------------------------------------------------------------------
    def note(self, fact: history.Fact) -> None:
        self.facts.append((self.clock.now_s, fact))
        if self.trace is not None and (line := show(fact)):
            self.trace(f"{self.clock.now_s - 1000.0:10.4f}  {line}")
        for watcher in self.watchers:
            watcher(fact)

    def say(self, text: str) -> None:
        """Note a fault for the trace."""
        if self.trace is not None:
            self.trace(f"{self.clock.now_s - 1000.0:10.4f}  ** {text}")

    def disturb(self, seconds: float) -> None:
        """Note that a fault acts for that long from now."""
        self.calm_from_s = max(self.calm_from_s, self.clock.now_s + seconds)

    # -- processes -------------------------------------------------------------------------------------------
    def new_pid(self) -> int:
        self._pids += 1
        return self._pids

    def socket(self, task: TaskId) -> Path:
        return RUN_DIR / f"{task}.sock"

    def born(self, process: Process) -> None:
        self.processes[process.pid] = process
        if process.task.runs_program:
            self.last_incarnation = max(self.last_incarnation, process.incarnation)
        self.note(history.Born(process.task, process.incarnation, process.pid))

    def environment_of(self, service: ServiceProcess, start: Start) -> SimEnvironment:
        """Return what the checkpoint service touches."""
        return SimEnvironment(service, start)

    def find(self, task: TaskId) -> Process | None:
        """Return the newest living process of that task."""
        return next((p for p in reversed(self.processes.values()) if p.task == task), None)

    def holder(self, task: TaskId) -> Process | None:
        """Return the process that holds that task's lock."""
        return next((p for p in self.processes.values() if p.task == task and p.holds_lock), None)

    def wake_holder(self, task: TaskId) -> None:
        """Send SIGCONT to the process that holds that task's lock."""
        if (holder := self.holder(task)) is not None:
            holder.thaw()

    def process_died(self, process: Process, exit: Exit, by: str) -> None:
        self.processes.pop(process.pid, None)
        self.note(
            history.Died(process.task, process.incarnation, process.pid, exit, by, process.is_orphan, process.is_stuck)
        )
        if isinstance(process, Watchdog):
            for child in process.machine.children.values():
                child.orphan()
            return
        if isinstance(process, ProgramProcess):
            self.rings.died(process)
        if isinstance(process, ProgramProcess) and self.program.grandchild and exit.code != 0:
            self._leave_a_grandchild(process.task)
        watchdog = self.watchdog
        if watchdog is not None and not watchdog.is_dead and watchdog.machine.children.get(process.task) is process:
            watchdog.machine.child_died(process, exit)

    def _leave_a_grandchild(self, task: TaskId) -> None:
        dies_in_s = self.rng.choice([0.0, 0.1, 2.0, 40.0])
        self.disturb(dies_in_s)
        self.strays.append(Stray(task, self.clock.now_s + self.rng.uniform(0.0, 60.0), dies_in_s))

    def _living_strays(self) -> list[Stray]:
        now_s = self.clock.now_s
        self.strays = [
            stray
            for stray in self.strays
            if now_s < stray.until_s and (stray.killed_s is None or now_s < stray.killed_s + stray.dies_in_s)
        ]
        return self.strays

    def writer_lock_is_held(self, task: TaskId | None = None) -> bool:
        """Return whether `task` (None: any task), or a process it has started, holds its lock."""
        tasks = self.settings.tasks if task is None else (task,)
        holders = {process.task for process in self.processes.values() if process.task.runs_program}
        return not holders.isdisjoint(tasks) or any(stray.task in tasks for stray in self._living_strays())

    def clear_tree(self, task: TaskId | None = None) -> bool:
        """Kill what a dead task (None: any) has left. Return whether nothing is left."""
        for stray in self._living_strays():
            if task in (None, stray.task):
                stray.killed_s = self.clock.now_s if stray.killed_s is None else stray.killed_s
        return not self.writer_lock_is_held(task)

    def why_not_spawned(self, task: TaskId) -> str:
        if self.clock.now_s < self.cannot_spawn_until_s:
            return "[Errno 24] Too many open files"
        if task.runs_program and self.writer_lock_is_held(task):
            return f"processes of an older {task} still hold the logdir"
        return ""

    def launch(self, number: int) -> Watchdog:
        """Type `procsv launch` once more."""
        run = f"{self.seed & 0xFFFFFFFF:08x}{number:08x}"
        self.last_run = self.run_json.run if self.run_json is not None else ""
        self.watchdog = Watchdog(self, run, self.settings)
        return self.watchdog

    def clear_run(self, keep_memory: bool) -> None:
        """Do opening.remove_run: only what is in the logdir is left."""
        if not keep_memory:
            self.memory.clear()
        self.clear_run_dir()

    def clear_run_dir(self) -> None:
        """Do opening.clear_run_dir, or what turning a machine off does."""
        self.events.notes.clear()
        self.kept_plan = None

    # -- how long things take --------------------------------------------------------------------------------
    def boot_s(self) -> float:
        return self.rng.uniform(0.1, 0.6)

    def job_s(self) -> float:
        return self.rng.uniform(0.01, 0.5) * self.slow_disk

    # -- procsv status ---------------------------------------------------------------------------------------
    def ask_status(self) -> None:
        """Run `procsv status`. Note its answer, or that there was none."""
        watchdog = self.watchdog
        if watchdog is None or watchdog.is_dead or watchdog.core is None or watchdog.is_frozen:
            return
        asked_s = self.clock.now_s
        done: list[bool] = []

        def hear(received: Received) -> None:
            if isinstance(received.body, Status):
                finish(received.body)

        def finish(status: Status | None) -> None:
            if not done:
                done.append(True)
                client.close()
                answer = None if status is None else msgspec.json.decode(status.json)
                if status is not None or (not watchdog.is_dead and watchdog.frozen_until_s <= asked_s):
                    self.note(history.Asked(self.clock.now_s - asked_s, answer))

        client = self.command(watchdog, StatusRequest(), hear)
        self.clock.after(STATUS_S_MAX, lambda: finish(None))

    def command(self, watchdog: Watchdog, body: Message, hear: Callable[[Received], None] | None = None) -> SimClient:
        """Send the watchdog a message from a command of the user."""

        def wake() -> None:
            if client.resend_due():
                client.resend_due()
            while (received := client.receive()) is not None:
                if hear is not None:
                    hear(received)

        client = SimClient(self.network, watchdog.control, Address("", COMMAND_LINE, 1), self.clock, wake)
        client.send_reliable(body)
        return client
