"""Options of a BackupAndRestore, and how they have checkpoints made."""

from __future__ import annotations

import msgspec

from procsv.ipc.messaging.checkpoint_messages import KEEP_NEVER_HOURS, CheckpointPlan
from procsv.training.keras.position import Way

SAVE_S = 600.0  # between checkpoints by time


class Options(msgspec.Struct, frozen=True):
    """What a BackupAndRestore was told."""

    prefix: str  # of the checkpoints' names, with the directory
    save_freq: int | str
    data: Way
    max_to_keep: int
    keeps_callbacks: bool
    snapshot_s: float | None

    def make_plan(self) -> CheckpointPlan:
        return CheckpointPlan(
            save_path=self.prefix,
            latest_filename="checkpoint",
            save_secs=SAVE_S,
            max_to_keep=self.max_to_keep,
            keep_every_n_hours=KEEP_NEVER_HOURS,
            pad_step_number=False,
            save_relative_paths=True,
            meta_path="",
            lists_times=True,
        )
