"""Progress of a model that several tasks train on parameter servers, and what was taken back of it.

Made by roster.py for runs with servers, and shared by the progress.py of all who train.  Pure.  The chief alone cannot tell what a lost
server has cost: the others train on while it is away.  Steps are as they were read last of each task, so that a loss may be counted half a
second short.
"""

from __future__ import annotations

import msgspec

from procsv.base.outcome import NO_STEP


class ModelProgress(msgspec.Struct):
    """How far the model has come, by the steps that are read of all who train it."""

    step: int = NO_STEP  # the highest since it was put back last
    _lost_at: int = NO_STEP  # where it was when servers were lost, and it with them

    def see(self, step: int) -> None:
        """A step that is news: what is read of a task that has made none since may be from before the model was put back."""
        self.step = max(self.step, step)

    def server_lost(self) -> None:
        """What is trained from here on comes after the loss."""
        self._lost_at = max(self._lost_at, self.step)

    def put_back(self, restored_step: int, step: int) -> int:
        """The chief has put back the state of `restored_step`, and has made a first `step`; how many steps the lost servers have cost.

        The others may have trained on with it before the chief says so.
        """
        reached, self.step, self._lost_at = self._lost_at, step, NO_STEP
        return max(0, reached - max(restored_step, 0)) if reached != NO_STEP else 0
