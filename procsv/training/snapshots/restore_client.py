"""Ask the checkpoint service for a new trainer's state, and restore it.

The state comes from memory or from a checkpoint, before the first step.  If there are checkpoints
but none is usable, training fails instead of starting from step 0.
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

ANSWER_S_MAX = 600.0  # the service may first have to save the last trainer's state

declare("trainer.restore")


class Origin(msgspec.Struct, frozen=True):
    """Where a state came from, as the journal records it."""

    source: Source
    path: str
    step: int
    listed: tuple[str, ...] = ()  # existing checkpoints, oldest first


FRESH = Origin("fresh", "", -1)
BY_CHIEF = Origin("chief", "", -1)  # for a worker, whose chief has restored


def introduce_plan(runtime: Runtime, plan: CheckpointPlan) -> None:
    """Tells the checkpoint service, and each later one, how to name and keep checkpoints."""
    runtime.numbers.ask_again()  # the plan may lead to a directory with higher numbers
    runtime.connection.link.introductions[CHECKPOINT] = plan
    runtime.connection.tell_checkpoint(plan)


def ask_newest(runtime: Runtime, durable_only: bool) -> RestoreFrom:
    """Asks the checkpoint service which state to start from; UserError if none is good."""
    answer = _ask_state(runtime, durable_only)
    if answer.error:
        raise UserError(answer.error, exit_code=exit_codes.GAVE_UP)
    return answer


def number_from_newest(runtime: Runtime) -> None:
    """Makes the program's snapshot numbers start after all known ones.

    If the program has restored a state, the numbers are known, and this does nothing.  Numbers that
    start at 1 again would look older to the service than an earlier attempt's snapshots, and it
    would not save the new ones.  If the service does not answer, the program trains anyway.
    """
    if runtime.numbers.is_known:
        return
    runtime.heartbeat.enter_phase(Phase.RESTORE)
    try:
        _ask_state(runtime, durable_only=True)
        runtime.connection.tell_checkpoint(Restored())  # the service need not keep anything for us
    except UserError as why:
        log.error("procsv: snapshots may not be saved, as their numbers may be lower than the newest one's: %s", why)


def _ask_state(runtime: Runtime, durable_only: bool) -> RestoreFrom:
    """Asks the service and returns its answer, errors included; UserError without an answer.

    From here on snapshots have the right numbers.
    """
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
    """Restores the newest state into `source`; FRESH if there is none."""
    runtime.heartbeat.enter_phase(Phase.RESTORE)
    failpoint("trainer.restore")
    answer = ask_newest(runtime, durable_only=False)
    if answer.source == "memory":
        try:
            restore_slot(Path(answer.path), source)
        except (CannotRestore, PeerError) as why:
            log.warning("procsv: the state in memory cannot be restored directly; using its checkpoint: %s", why)
            answer = ask_newest(runtime, durable_only=True)
    if answer.source == "checkpoint":
        source.restore(lasting_path(answer.path))
    if runtime.connection.start.is_chief or runtime.connection.start.is_member:
        runtime.connection.tell_checkpoint(Restored())
    return Origin(answer.source, answer.path, answer.step, tuple(answer.all_paths))


def restore_slot(path: Path, source: StateSource) -> None:
    """Restores the state in slot `path` into `source`."""
    info = next((i for i in scan_slots(path.parent) if i.path == path), None)
    if info is None:
        raise PeerError(f"slot {path.name} is gone")
    reader = SlotReader(info)
    try:
        source.restore(reader)
    except BaseException:
        reader.close()
        raise
    # Release the lock but keep the mapping: the source may share its memory.  The Restored message
    # tells the service that nobody may write this slot again.
    reader.release_lock()
