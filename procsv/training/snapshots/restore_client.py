"""A new trainer's state: asked of the checkpoint service, taken from memory or from a checkpoint.

Called before the first step.  It never starts from step 0 when there are checkpoints that cannot be used.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import msgspec

from procsv.base import exit_codes
from procsv.base.errors import PeerError, UserError
from procsv.base.identity import CHECKPOINT
from procsv.base.location import lasting_path
from procsv.base.outcome import Source
from procsv.base.system.failpoints import declare, failpoint
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan, Restore, Restored, RestoreFrom
from procsv.ipc.shm.heartbeat import Phase
from procsv.ipc.shm.slot_header import scan_slots
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.log import log
from procsv.training.snapshots.source import CannotRestore, StateSource

ANSWER_S_MAX = 600.0  # the service may first have to save what the last trainer left

declare("trainer.restore")


class Origin(msgspec.Struct, frozen=True):
    """Where a state came from, for the journal."""

    source: Source
    path: str
    step: int
    listed: tuple[str, ...] = ()  # the checkpoints there are, oldest first


FRESH = Origin("fresh", "", -1)
BY_CHIEF = Origin("chief", "", -1)  # a worker's: the chief has seen to it


def introduce_plan(runtime: Runtime, plan: CheckpointPlan) -> None:
    """Tells the checkpoint service, now and after every restart of it, how checkpoints are named and kept."""
    runtime.numbers.ask_again()  # where the plan leads, there may be higher ones
    runtime.connection.link.introductions[CHECKPOINT] = plan
    runtime.connection.tell_checkpoint(plan)


def ask_newest(runtime: Runtime, durable_only: bool) -> RestoreFrom:
    """The checkpoint service's answer to "which state shall I start from?".  UserError if none of them is good."""
    answer = _ask_state(runtime, durable_only)
    if answer.error:
        raise UserError(answer.error, exit_code=exit_codes.GAVE_UP)
    return answer


def number_from_newest(runtime: Runtime) -> None:
    """Numbers the snapshots of a program that has not restored behind all that are known.

    Else the service would take its first ones for older than what an earlier program, or attempt, has left, and would not save them.
    Without an answer the program trains all the same: nothing that has a number too low is acknowledged.
    """
    if runtime.numbers.is_known:
        return
    runtime.heartbeat.enter_phase(Phase.RESTORE)
    try:
        _ask_state(runtime, durable_only=True)
        runtime.connection.tell_checkpoint(Restored())  # it keeps nothing for us
    except UserError as why:
        log.error("procsv: the snapshots of this training may have numbers too low to be saved: %s", why)


def _ask_state(runtime: Runtime, durable_only: bool) -> RestoreFrom:
    """The answer, its error included; UserError if none comes.  From here on snapshots have the right numbers."""
    try:
        answer = cast(RestoreFrom, runtime.connection.link.ask(CHECKPOINT, Restore(durable_only), ANSWER_S_MAX).body)
    except TimeoutError:
        error = (
            f"the checkpoint service did not say within {ANSWER_S_MAX:.0f} s which state to start from; "
            f"see {runtime.connection.paths.logs}/checkpoint.*.log"
        )
        raise UserError(error, exit_code=exit_codes.GAVE_UP) from None
    except PeerError as lost:
        error = f"no checkpoint service is available to choose a restore point: {lost}"
        raise UserError(error, exit_code=exit_codes.GAVE_UP) from None
    runtime.numbers.learn_newest(answer.sequence)
    return answer


def restore_newest(runtime: Runtime, source: StateSource) -> Origin:
    """Puts the newest state into `source`; FRESH if there is none to put."""
    runtime.heartbeat.enter_phase(Phase.RESTORE)
    failpoint("trainer.restore")
    answer = ask_newest(runtime, durable_only=False)
    if answer.source == "memory":
        try:
            restore_slot(Path(answer.path), source)
        except (CannotRestore, PeerError) as why:
            log.warning("procsv: the state in memory is restored by way of its checkpoint: %s", why)
            answer = ask_newest(runtime, durable_only=True)
    if answer.source == "checkpoint":
        source.restore(lasting_path(answer.path))
    if runtime.connection.start.is_chief or runtime.connection.start.is_member:
        runtime.connection.tell_checkpoint(Restored())
    return Origin(answer.source, answer.path, answer.step, tuple(answer.all_paths))


def restore_slot(path: Path, source: StateSource) -> None:
    """Puts the state in slot `path` into `source`."""
    info = next((i for i in scan_slots(path.parent) if i.path == path), None)
    if info is None:
        raise PeerError(f"slot {path.name} is gone")
    reader = SlotReader(info)
    try:
        source.restore(reader)
    except BaseException:
        reader.close()
        raise
    # The lock goes, the mapping stays: the source may share its memory.  The service knows (Restored) that this slot is
    # never to be written again.
    reader.release_lock()
