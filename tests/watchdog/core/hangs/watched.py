"""A trainer that is watched for hangs: its heartbeat over time, read twice a second."""

from __future__ import annotations

from collections.abc import Callable

from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.hangs.trainer_liveness import Hang, Liveness, StepTimes


class Trainer:
    """A heartbeat over time, read twice a second as the reactor does."""

    def __init__(self, launch: LaunchSettings | None = None, known_s: float = 0.0, *, is_near: bool = True) -> None:
        """`is_near`: its processes can be examined."""
        self.is_near = is_near
        self.now_s = 1000.0
        self.liveness = Liveness(launch or LaunchSettings(), StepTimes(known_s))
        self.liveness.start_watch(self.now_s)
        self.beat: Heartbeat | None = None
        self.works = False  # its processes are active
        self.activity = 0

    def starts_again(self) -> Trainer:
        """Start again after an attempt that had a session."""
        self.says(Phase.CONNECT)
        self.beat = None
        self.liveness.start_watch(self.now_s)
        return self

    def says(
        self, phase: Phase, step: int = -1, work: int = 0, extended_s: float = 0.0, *, in_step: bool = True
    ) -> Trainer:
        self.beat = Heartbeat(phase, step, work, self.now_s, extended_s, in_step=in_step)
        self.liveness.read_heartbeat(self.beat, self.now_s)
        return self

    def passes(self, seconds: float, every_s: float = 0.5) -> Hang | None:
        """Let time pass without progress. Return the hang as soon as there is one."""
        return self._passes(seconds, every_s, self.liveness.hang)

    def is_suspected_within(self, seconds: float) -> Hang | None:
        return self._passes(seconds, 0.5, self.liveness.suspicion)

    def _passes(self, seconds: float, every_s: float, find: Callable[[float], Hang | None]) -> Hang | None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s = min(until_s, self.now_s + every_s)
            self.activity += self.works
            is_looked_at = self.liveness.wants_activity(self.now_s)
            self.liveness.read_activity(self.activity if is_looked_at and self.is_near else None, self.now_s)
            self.liveness.read_heartbeat(self.beat, self.now_s)
            if (hang := find(self.now_s)) is not None:
                return hang
        return None

    def trains(self, steps: int, step_s: float) -> Trainer:
        self.says(Phase.STEP, 0)
        for step in range(1, steps + 1):
            assert self.passes(step_s) is None
            self.says(Phase.STEP, step, step)
        return self


def far(launch: LaunchSettings | None = None) -> Trainer:
    """Return a trainer on another machine, of which only the heartbeat is visible."""
    return Trainer(launch, is_near=False)
